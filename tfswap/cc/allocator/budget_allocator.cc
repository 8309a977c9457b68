#include "allocator/budget_allocator.h"

#include <algorithm>
#include <chrono>
#include <unordered_set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "allocator/kernel_scope.h"
#include "core/memory/allocation_wait_policy.h"
#include "core/util/atomic_max.h"
#include "core/util/now.h"
#include "core/util/runnable_threads.h"
#include "tensorflow/core/common_runtime/dma_helper.h"
#include "tensorflow/core/framework/cancellation.h"
#include "tsl/profiler/lib/scoped_memory_debug_annotation.h"

namespace tfswap {

using ::tensorflow::AllocationAttributes;
using ::tensorflow::Tensor;

namespace {

// How long a swap-in defers to kernels that wait for memory, which need it now.
constexpr auto kDeference = std::chrono::milliseconds(20);

thread_local std::string last_failure;

// Return the bytes of a kernel's inputs; a buffer that several tensors share counts once.
int64_t InputBytes(tensorflow::OpKernelContext* context) {
  int64_t bytes = 0;
  std::unordered_set<const void*> seen;
  for (int i = 0; i < context->num_inputs(); ++i) {
    if (!context->has_input(i) || context->input_is_ref(i)) continue;
    const Tensor& input = context->input(i);
    const auto* buffer = tensorflow::DMAHelper::buffer(&input);
    if (buffer == nullptr || buffer->data() == nullptr) continue;
    if (seen.insert(buffer->data()).second) bytes += input.TotalBytes();
  }
  return bytes;
}

}  // namespace

thread_local KernelScope* KernelScope::current = nullptr;

std::string BudgetAllocator::Name() {
  if (last_failure.empty()) return next()->Name();
  std::string text = next()->Name() + ". " + last_failure;
  last_failure.clear();
  return text;
}

std::string BudgetAllocator::TakeUnreportedShortage() {
  return std::exchange(last_failure, std::string());
}

void BudgetAllocator::Explain(tensorflow::OpKernelContext* context) {
  if (context->status().ok()) return;
  const std::string why = TakeUnreportedShortage();
  if (why.empty()) return;
  // The context keeps its first error.
  auto& status = const_cast<absl::Status&>(context->status());
  const absl::string_view before = absl::StripSuffix(status.message(), ".");
  status = absl::ResourceExhaustedError(absl::StrCat(before, ". ", why));
}

void* BudgetAllocator::AllocateRaw(size_t alignment, size_t num_bytes,
                                   const AllocationAttributes& attributes) {
  if (!last_failure.empty()) last_failure.clear();
  if (reclaimer_ != nullptr) reclaimer_->ReleaseUnread();
  const Request request{alignment, num_bytes, attributes};
  const bool is_workspace = !attributes.retry_on_failure;
  if (is_workspace && HasBudget() && request.counted() > limit_.load()) {
    workspaces_declined_.fetch_add(1, std::memory_order_relaxed);
    return nullptr;
  }
  Refusal refusal = Refusal::kNone;
  void* ptr = MustDefer() ? nullptr : Obtain(request, &refusal);
  if (ptr == nullptr) {
    KernelScope* scope = KernelScope::current;
    if (scope != nullptr && scope->effort != KernelScope::Effort::kWait) {
      if (scope->effort == KernelScope::Effort::kEvict) ptr = ObtainNow(request, &refusal);
      scope->gave_way = ptr == nullptr;
    } else {
      ptr = ObtainOrWait(request, &refusal);
    }
  }
  const bool gave_way = KernelScope::current != nullptr && KernelScope::current->gave_way;
  if (ptr != nullptr || gave_way) return ptr;
  if (is_workspace) {
    workspaces_declined_.fetch_add(1, std::memory_order_relaxed);
    return nullptr;
  }
  failures_.fetch_add(1, std::memory_order_relaxed);
  last_failure = ShortageOf(request, refusal).Text();
  return nullptr;
}

void BudgetAllocator::DeallocateRaw(void* ptr) {
  if (ptr == nullptr) return;
  const auto bytes = static_cast<int64_t>(next()->AllocatedSize(ptr));
  next()->DeallocateRaw(ptr);
  Release(bytes);
}

std::optional<tensorflow::AllocatorStats> BudgetAllocator::GetStats() {
  tensorflow::AllocatorStats answer = next()->GetStats().value_or(tensorflow::AllocatorStats());
  const BudgetStats stats = Stats();
  answer.bytes_in_use = stats.bytes_in_use;
  answer.peak_bytes_in_use = stats.peak_bytes;
  if (stats.budget_bytes > 0) answer.bytes_limit = stats.budget_bytes;
  return answer;
}

bool BudgetAllocator::ClearStats() {
  peak_.store(in_use_.load());
  waits_.store(0);
  wait_ns_.store(0);
  failures_.store(0);
  workspaces_declined_.store(0);
  next()->ClearStats();
  return true;
}

void BudgetAllocator::SetBudget(int64_t budget_bytes) {
  limit_.store(budget_bytes);
  std::lock_guard<std::mutex> lock(wait_mu_);
  freed_.notify_all();
}

void BudgetAllocator::MakeRoom() {
  // An evicted buffer may free less than its size: pages that it shares with other blocks stay.
  while (HasBudget()) {
    // Read this first: a buffer that is released before the rest is read then counts in neither.
    const int64_t leaving = reclaimer_ == nullptr ? 0 : reclaimer_->BytesLeaving();
    const int64_t missing = Beyond(-leaving);
    if (missing <= 0) return;
    int64_t freed = Reclaim(missing);
    if (spare_ != nullptr && Beyond(0) > 0) freed += spare_->Release(Beyond(0));
    if (freed == 0) return;
  }
}

BudgetStats BudgetAllocator::Stats() const {
  BudgetStats stats;
  stats.budget_bytes = limit_.load();
  stats.bytes_in_use = in_use_.load();
  stats.peak_bytes = peak_.load();
  stats.window_peak_bytes = window_peak_.load();
  stats.window_lack_bytes = window_lack_.load();
  stats.waits = waits_.load();
  stats.wait_ns = wait_ns_.load();
  stats.failures = failures_.load();
  stats.workspaces_declined = workspaces_declined_.load();
  return stats;
}

void BudgetAllocator::RestartWindow() {
  window_peak_.store(in_use_.load());
  window_lack_.store(0);
  window_reclaimed_.store(0);
}

void BudgetAllocator::KernelEnds() {
  running_.fetch_sub(1, std::memory_order_relaxed);
  if (waiting_.load() == 0) return;
  ends_.fetch_add(1, std::memory_order_relaxed);
  freed_.notify_all();
}

void BudgetAllocator::NoteStep(int64_t step_id) {
  constexpr size_t kKept = 16;
  last_step_.store(step_id, std::memory_order_relaxed);
  std::lock_guard<std::mutex> lock(steps_mu_);
  for (const StepStart& step : steps_) {
    if (step.step_id == step_id) return;
  }
  steps_.push_back({step_id, in_use_.load()});
  if (steps_.size() > kKept) steps_.pop_front();
}

int64_t BudgetAllocator::BytesAtStart(int64_t step_id) {
  std::lock_guard<std::mutex> lock(steps_mu_);
  for (const StepStart& step : steps_) {
    if (step.step_id == step_id) return step.bytes;
  }
  return 0;
}

bool BudgetAllocator::TryReserve(int64_t bytes) {
  int64_t used = in_use_.load(std::memory_order_relaxed);
  const int64_t most = limit_.load(std::memory_order_relaxed);
  do {
    if (most > 0 && used + bytes > most) return false;
  } while (!in_use_.compare_exchange_weak(used, used + bytes));
  RaiseTo(used + bytes, &peak_);
  RaiseTo(used + bytes, &window_peak_);
  return true;
}

void* BudgetAllocator::Obtain(const Request& request, Refusal* refusal) {
  *refusal = Refusal::kBudget;
  const auto fallback = [&] { return spare_->AllocateFallback(request.alignment, request.bytes); };
  if (spare_ != nullptr && spare_->Grows()) {
    if (void* ptr = fallback()) return ptr;
  }
  if (TryReserve(request.counted())) {
    if (void* ptr = FromNext(request, refusal)) return ptr;
  }
  if (spare_ == nullptr) return nullptr;
  if (!spare_->Grows()) return fallback();
  if (!KernelScope::TakesIdle()) return nullptr;
  const int64_t missing = Beyond(request.counted());
  if (spare_->Release(missing) == 0) return nullptr;
  if (!TryReserve(request.counted())) {
    *refusal = Refusal::kBudget;
    return nullptr;
  }
  return FromNext(request, refusal);
}

bool BudgetAllocator::Pay(int64_t bytes) {
  if (TryReserve(bytes)) return true;
  if (spare_ == nullptr || !spare_->Grows()) return false;
  return spare_->Release(Beyond(bytes)) > 0 && TryReserve(bytes);
}

bool BudgetAllocator::WhileLeaving(const std::function<bool()>& take) {
  if (!MustDefer() && take()) return true;
  const int64_t start_ns = NowNs();
  bool taken = false;
  waiting_.fetch_add(1);
  for (;;) {
    // Read this first: what is released before `take` runs is then free.
    const bool leaving = reclaimer_ != nullptr && reclaimer_->BytesLeaving() > 0;
    const int64_t seen_releases = releases_.load();
    taken = !MustDefer() && take();
    if (taken || !leaving) break;
    std::unique_lock<std::mutex> lock(wait_mu_);
    if (releases_.load() == seen_releases) freed_.wait_for(lock, kPollInterval);
  }
  waiting_.fetch_sub(1);
  wait_ns_.fetch_add(NowNs() - start_ns, std::memory_order_relaxed);
  return taken;
}

void* BudgetAllocator::FromNext(const Request& request, Refusal* refusal) {
  // A GPU's BFC allocator would wait up to 10 s for memory that a swap can free at once.
  const bool waits_here = HasBudget() || (reclaimer_ != nullptr && reclaimer_->IsSwapping());
  const AllocationAttributes attributes(request.attributes.retry_on_failure && !waits_here,
                                        request.attributes.allocation_will_be_logged,
                                        request.attributes.freed_by_func);
  void* ptr = next()->AllocateRaw(request.alignment, request.bytes, attributes);
  if (ptr != nullptr) {
    // A chunk of BFC may be up to twice as large as the request.
    const auto rest = static_cast<int64_t>(next()->AllocatedSize(ptr)) - request.counted();
    if (rest <= 0 || TryReserve(rest)) return ptr;
    next()->DeallocateRaw(ptr);
  }
  in_use_.fetch_sub(request.counted());  // frees nothing that other threads could wait for
  *refusal = Refusal::kFragments;
  return nullptr;
}

int64_t BudgetAllocator::Missing(const Request& request, Refusal refusal) const {
  // If memory is fragmented, any evicted buffer may join free pieces, or be a smaller chunk.
  if (refusal == Refusal::kFragments) return request.counted();
  return Beyond(request.counted());
}

int64_t BudgetAllocator::Reclaim(int64_t bytes) {
  if (reclaimer_ == nullptr) return 0;
  const int64_t before = window_reclaimed_.load();
  const int64_t reclaimed = reclaimer_->Reclaim(bytes);
  if (reclaimed > 0) {
    // Whole tensors are evicted, so the bytes that were missing are fewer than those reclaimed.
    RaiseTo(before + bytes, &window_lack_);
    window_reclaimed_.fetch_add(reclaimed);
  }
  return reclaimed;
}

bool BudgetAllocator::MustDefer() const {
  const KernelScope* scope = KernelScope::current;
  return scope != nullptr && scope->role == KernelScope::Role::kSwapIn &&
         waiting_kernels_.load() > 0;
}

void* BudgetAllocator::ObtainNow(const Request& request, Refusal* refusal) {
  if (Reclaim(Missing(request, *refusal)) == 0) return nullptr;
  return Obtain(request, refusal);
}

void* BudgetAllocator::ObtainOrWait(const Request& request, Refusal* refusal) {
  const int64_t start_ns = NowNs();
  KernelScope* scope = KernelScope::current;
  const bool in_kernel = scope != nullptr && scope->role == KernelScope::Role::kKernel;
  waiting_.fetch_add(1);
  waits_.fetch_add(1, std::memory_order_relaxed);
  if (in_kernel) waiting_kernels_.fetch_add(1);

  void* ptr = nullptr;
  int64_t seen_releases = releases_.load();
  int64_t seen_ends = ends_.load();
  AllocationWaitPolicy policy(AllocationWaitPolicy::Now());
  for (;;) {
    const bool quiet = policy.WithoutRelease() > kDeference;
    if ((quiet || !MustDefer()) && (ptr = Obtain(request, refusal)) != nullptr) break;
    if (scope != nullptr && scope->give_way && scope->give_way()) {
      scope->gave_way = true;
      break;
    }
    if (scope != nullptr && scope->context != nullptr &&
        scope->context->cancellation_manager() != nullptr &&
        scope->context->cancellation_manager()->IsCancelled()) {
      break;
    }
    // Read this first: a buffer that is released before `missing` is read then counts in neither.
    const int64_t leaving = reclaimer_ != nullptr ? reclaimer_->BytesLeaving() : 0;
    const int64_t missing = Missing(request, *refusal);
    const bool copying_in = reclaimer_ != nullptr && reclaimer_->IsCopyingIn();
    const int64_t reclaimed = missing > leaving ? Reclaim(missing - leaving) : 0;
    if (reclaimer_ != nullptr) reclaimer_->ReleaseUnread();
    const bool released = releases_.load() != seen_releases;
    if (released) seen_releases = releases_.load();
    // A kernel that waits for memory frees none. Progress can only come from other kernels: those
    // that run now, and those that started and ended since the last check.
    const int64_t ends = ends_.load();
    const bool others_run =
        running_.load() > waiting_kernels_.load() || std::exchange(seen_ends, ends) != ends;
    const bool alive = leaving > 0 || reclaimed > 0 || copying_in || others_run;
    if (policy.ShouldStop(AllocationWaitPolicy::Now(), released, alive, OthersAreRunnable)) break;
    if (released) continue;
    std::unique_lock<std::mutex> lock(wait_mu_);
    if (releases_.load() == seen_releases) freed_.wait_for(lock, kPollInterval);
  }

  if (in_kernel) waiting_kernels_.fetch_sub(1);
  waiting_.fetch_sub(1);
  const int64_t waited_ns = NowNs() - start_ns;
  wait_ns_.fetch_add(waited_ns, std::memory_order_relaxed);
  if (scope != nullptr) scope->wait_ns += waited_ns;
  return ptr;
}

void BudgetAllocator::Release(int64_t bytes) {
  in_use_.fetch_sub(bytes);
  NotifyFreed();
}

void BudgetAllocator::NotifyFreed() {
  if (waiting_.load() == 0) return;
  releases_.fetch_add(1);
  std::lock_guard<std::mutex> lock(wait_mu_);
  freed_.notify_all();
}

Shortage BudgetAllocator::ShortageOf(const Request& request, Refusal refusal) {
  const int64_t bytes = request.counted();
  Shortage found;
  if (holders_ != nullptr) found.holders = holders_->Holders();
  const auto& annotation = tsl::profiler::ScopedMemoryDebugAnnotation::CurrentAnnotation();
  found.op = annotation.pending_op_name;
  found.bytes = bytes;
  found.budget = limit_.load();
  found.in_use = in_use_.load();
  found.in_pieces = refusal == Refusal::kFragments;
  found.staying = BytesAtStart(annotation.pending_step_id);
  found.own = bytes;
  for (const Holder& holder : found.holders) {
    if (holder.step_id == annotation.pending_step_id && holder.op == found.op) {
      found.own += holder.bytes;
    }
  }
  tensorflow::OpKernelContext* context =
      KernelScope::current != nullptr ? KernelScope::current->context : nullptr;
  if (context != nullptr) found.own += InputBytes(context);
  const bool eager = context != nullptr && context->call_frame() == nullptr;
  if (eager || found.staying == 0) {  // no known step in which anything could be swapped
    found.staying = found.in_use;
    found.own = bytes;
  }

  const size_t named = std::min<size_t>(5, found.holders.size());
  std::partial_sort(found.holders.begin(), found.holders.begin() + named, found.holders.end(),
                    [](const Holder& a, const Holder& b) { return a.bytes > b.bytes; });
  found.holders.resize(named);

  if (spare_ != nullptr) found.picture = spare_->Picture();
  if (reclaimer_ != nullptr) {
    found.swapping = reclaimer_->IsSwapping();
    found.missing_far_bytes = std::max<int64_t>(found.in_use + bytes - found.budget, bytes);
    found.why_blocked = reclaimer_->WhyBlocked(found.missing_far_bytes);
  }
  return found;
}

}  // namespace tfswap
