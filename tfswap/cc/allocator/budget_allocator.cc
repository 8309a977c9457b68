#include "allocator/budget_allocator.h"

#include <algorithm>
#include <chrono>
#include <unordered_set>
#include <utility>

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

// How long a swap-in lets kernels that wait for memory go first: what they need is needed now.
constexpr auto kDeference = std::chrono::milliseconds(20);

thread_local std::string last_failure;

// Of tensors that share one, once.
int64_t InputBytes(tensorflow::OpKernelContext* context) {
  int64_t bytes = 0;
  std::unordered_set<const void*> seen;
  for (int i = 0; i < context->num_inputs(); ++i) {
    if (!context->has_input(i) || context->input_is_ref(i)) continue;
    const Tensor& input = context->input(i);
    const auto* buffer = tensorflow::DMAHelper::buffer(&input);
    if (buffer != nullptr && seen.insert(buffer->data()).second) bytes += input.TotalBytes();
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

std::string BudgetAllocator::TakeUntold() { return std::exchange(last_failure, std::string()); }

void* BudgetAllocator::AllocateRaw(size_t alignment, size_t num_bytes,
                                   const AllocationAttributes& attributes) {
  if (!last_failure.empty()) last_failure.clear();
  const Request request{alignment, num_bytes, attributes, Own()};
  const bool is_workspace = !attributes.retry_on_failure;
  if (is_workspace && HasBudget() && request.counted() > all_.limit.load()) return nullptr;
  Refusal refusal = Refusal::kNone;
  void* ptr = MustDefer() ? nullptr : Obtain(request, &refusal);
  if (ptr == nullptr) {
    KernelScope* scope = KernelScope::current;
    if (scope != nullptr && scope->now_or_never) {
      ptr = ObtainNow(request, &refusal);
      scope->gave_way = ptr == nullptr;
    } else {
      ptr = ObtainOrWait(request, &refusal);
    }
  }
  const bool gave_way = KernelScope::current != nullptr && KernelScope::current->gave_way;
  if (ptr != nullptr || gave_way || is_workspace) return ptr;
  failures_.fetch_add(1, std::memory_order_relaxed);
  last_failure = ShortageOf(request, refusal).Text();
  return nullptr;
}

void BudgetAllocator::DeallocateRaw(void* ptr) {
  if (ptr == nullptr) return;
  const auto bytes = static_cast<int64_t>(next()->RequestedSize(ptr));
  const int charged = Discharge(ptr);
  next()->DeallocateRaw(ptr);
  Release(bytes, AccountOf(charged));
  if (charged == kOlder) Inherit(bytes);
}

void BudgetAllocator::ReleaseOf(const void* ptr, int64_t bytes) {
  const int charged = charged_blocks_.load() > 0 ? charged_.Get(ptr, 0) : 0;
  Release(bytes, AccountOf(charged));
  if (charged == kOlder) Inherit(bytes);
}

void BudgetAllocator::Inherit(int64_t bytes) {
  Account* heir = AccountOf(Jobs::Latest());
  if (heir == nullptr) return;
  heir->limit.fetch_add(bytes);
  NotifyFreed(heir);
}

void BudgetAllocator::Charge(const void* ptr, int job) {
  charged_.Insert(ptr, job, [this] { charged_blocks_.fetch_add(1); });
}

void BudgetAllocator::MarkOlder() {
  if (holders_ == nullptr) return;
  holders_->ForEach([this](const void* ptr) {
    // Spare memory says by itself what it gives back.
    if (spare_ != nullptr && spare_->Owns(ptr)) return;
    Discharge(ptr);  // from a job that has ended, say
    Charge(ptr, kOlder);
  });
}

int BudgetAllocator::Discharge(const void* ptr) {
  if (charged_blocks_.load() == 0) return 0;
  int job = 0;
  if (charged_.Remove(ptr, [&job](int charged) { job = charged; })) charged_blocks_.fetch_sub(1);
  return job;
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
  all_.peak.store(all_.in_use.load());
  all_.waits.store(0);
  wait_ns_.store(0);
  failures_.store(0);
  next()->ClearStats();
  return true;
}

void BudgetAllocator::SetBudget(int64_t budget_bytes) {
  all_.limit.store(budget_bytes);
  std::lock_guard<std::mutex> lock(wait_mu_);
  freed_.notify_all();
}

void BudgetAllocator::MakeRoom() {
  // What leaves need not free as much as it holds: pages that it shares with others stay.
  while (HasBudget()) {
    // Read first: what has left by the time that the rest is read is then in neither.
    const int64_t leaving = reclaimer_ == nullptr ? 0 : reclaimer_->BytesLeaving(0);
    const int64_t missing = all_.Beyond(-leaving);
    if (missing <= 0) return;
    int64_t freed = Reclaim(missing, nullptr, Refusal::kBudget);
    if (spare_ != nullptr && all_.Beyond(0) > 0) freed += spare_->Release(all_.Beyond(0));
    if (freed == 0) return;
  }
}

void BudgetAllocator::BeginJob(int job, int64_t share_bytes) {
  if (!Jobs::Get()->any()) MarkOlder();
  Account& own = jobs_[Jobs::SlotOf(job)];
  own.in_use.store(0);
  own.peak.store(0);
  own.running.store(0);
  own.waits.store(0);
  own.waiting_kernels.store(0);
  own.RestartWindow();
  own.limit.store(share_bytes);
  own.job.store(job, std::memory_order_release);
}

void BudgetAllocator::SetShare(int job, int64_t share_bytes) {
  Account* own = AccountOf(job);
  if (own == nullptr) return;
  own->limit.store(share_bytes);
  std::lock_guard<std::mutex> lock(wait_mu_);
  freed_.notify_all();
}

void BudgetAllocator::EndJob(int job) {
  if (Account* own = AccountOf(job)) own->job.store(0);
}

int64_t BudgetAllocator::EverybodysBytes() const {
  int64_t bytes = all_.in_use.load();
  for (const Account& each : jobs_) {
    if (each.job.load() != 0) bytes -= each.in_use.load();
  }
  return std::max(bytes, int64_t{0});
}

BudgetStats BudgetAllocator::Stats(int job) const {
  const Account* own = AccountOf(job);
  const Account& account = own == nullptr ? all_ : *own;
  BudgetStats stats;
  stats.budget_bytes = account.limit.load();
  stats.bytes_in_use = account.in_use.load();
  stats.peak_bytes = account.peak.load();
  stats.window_peak_bytes = account.window_peak.load();
  stats.window_lack_bytes = account.window_lack.load();
  stats.waits = account.waits.load();
  stats.wait_ns = wait_ns_.load();
  stats.failures = failures_.load();
  return stats;
}

void BudgetAllocator::Account::RestartWindow() {
  window_peak.store(in_use.load());
  window_lack.store(0);
  window_reclaimed.store(0);
}

void BudgetAllocator::RestartWindow(int job) {
  Account* own = AccountOf(job);
  (own == nullptr ? all_ : *own).RestartWindow();
}

void BudgetAllocator::KernelEnds(int job) {
  all_.running.fetch_sub(1, std::memory_order_relaxed);
  Account* own = AccountOf(job);
  if (own != nullptr) own->running.fetch_sub(1, std::memory_order_relaxed);
  if (waiting_.load() == 0) return;
  all_.ends.fetch_add(1, std::memory_order_relaxed);
  if (own != nullptr) own->ends.fetch_add(1, std::memory_order_relaxed);
  freed_.notify_all();
}

void BudgetAllocator::NoteStep(int64_t step_id, int job) {
  constexpr size_t kKept = 16;
  last_step_.store(step_id, std::memory_order_relaxed);
  std::lock_guard<std::mutex> lock(steps_mu_);
  for (const StepStart& step : steps_) {
    if (step.step_id == step_id) return;
  }
  steps_.push_back({step_id, Stats(job).bytes_in_use});
  if (steps_.size() > kKept) steps_.pop_front();
}

int64_t BudgetAllocator::BytesAtStart(int64_t step_id) {
  std::lock_guard<std::mutex> lock(steps_mu_);
  for (const StepStart& step : steps_) {
    if (step.step_id == step_id) return step.bytes;
  }
  return 0;
}

BudgetAllocator::Refusal BudgetAllocator::Reserve(int64_t bytes, Account* own) {
  if (own != nullptr && !own->Take(bytes)) return Refusal::kShare;
  if (!all_.Take(bytes)) {
    if (own != nullptr) own->in_use.fetch_sub(bytes);
    return Refusal::kBudget;
  }
  return Refusal::kNone;
}

bool BudgetAllocator::Account::Take(int64_t bytes) {
  int64_t used = in_use.load(std::memory_order_relaxed);
  const int64_t most = limit.load(std::memory_order_relaxed);
  do {
    if (most > 0 && used + bytes > most) return false;
  } while (!in_use.compare_exchange_weak(used, used + bytes));
  RaiseTo(used + bytes, &peak);
  RaiseTo(used + bytes, &window_peak);
  return true;
}

void BudgetAllocator::Unreserve(int64_t bytes, Account* own) {
  all_.in_use.fetch_sub(bytes);
  if (own != nullptr) own->in_use.fetch_sub(bytes);
}

void* BudgetAllocator::Obtain(const Request& request, Refusal* refusal) {
  *refusal = Refusal::kBudget;
  const auto instead = [&] { return spare_->AllocateFallback(request.alignment, request.bytes); };
  if (spare_ != nullptr && spare_->Grows()) {
    if (void* ptr = instead()) return ptr;
  }
  const auto reserved = [&] {
    *refusal = Reserve(request.counted(), request.own);
    return *refusal == Refusal::kNone;
  };
  if (reserved()) {
    if (void* ptr = FromNext(request, refusal)) return ptr;
  }
  if (spare_ == nullptr) return nullptr;
  // Beside jobs it is older than they are, and what one has it give back is its own.
  const bool beside_jobs = *refusal == Refusal::kShare;
  if (!spare_->Grows() && !beside_jobs) return instead();
  const int64_t missing = Refusing(*refusal, request.own).Beyond(request.counted());
  if (spare_->Release(missing) == 0 || !reserved()) return nullptr;
  return FromNext(request, refusal);
}

bool BudgetAllocator::Pay(int64_t bytes) {
  Account* own = Own();
  const Refusal refusal = Reserve(bytes, own);
  if (refusal == Refusal::kNone) return true;
  if (spare_ == nullptr || !(spare_->Grows() || refusal == Refusal::kShare)) return false;
  const int64_t missing = Refusing(refusal, own).Beyond(bytes);
  return spare_->Release(missing) > 0 && Reserve(bytes, own) == Refusal::kNone;
}

bool BudgetAllocator::WhileLeaving(const std::function<bool()>& take) {
  if (!MustDefer() && take()) return true;
  const int64_t start_ns = NowNs();
  bool taken = false;
  waiting_.fetch_add(1);
  for (;;) {
    // Read first: what has left by the time that it is tried is free then.
    const bool leaving = reclaimer_ != nullptr && reclaimer_->BytesLeaving(Jobs::Current()) > 0;
    const int64_t seen_releases = all_.releases.load();
    taken = !MustDefer() && take();
    if (taken || !leaving) break;
    std::unique_lock<std::mutex> lock(wait_mu_);
    if (all_.releases.load() == seen_releases) freed_.wait_for(lock, kPollInterval);
  }
  waiting_.fetch_sub(1);
  wait_ns_.fetch_add(NowNs() - start_ns, std::memory_order_relaxed);
  return taken;
}

void* BudgetAllocator::FromNext(const Request& request, Refusal* refusal) {
  // A GPU's BFC allocator would wait by itself, for 10 s, for what a swap can free at once.
  const bool ours = HasBudget() || (reclaimer_ != nullptr && reclaimer_->InForce());
  const AllocationAttributes attributes(request.attributes.retry_on_failure && !ours,
                                        request.attributes.allocation_will_be_logged,
                                        request.attributes.freed_by_func);
  void* ptr = next()->AllocateRaw(request.alignment, request.bytes, attributes);
  if (ptr == nullptr) {
    Unreserve(request.counted(), request.own);  // nothing became free that others could wait for
    *refusal = Refusal::kFragments;
  } else if (request.own != nullptr) {
    Charge(ptr, request.own->job.load());
  }
  return ptr;
}

int64_t BudgetAllocator::Missing(const Request& request, Refusal refusal) const {
  // Where there is room, but in pieces, whatever leaves may join them.
  if (refusal == Refusal::kFragments) return request.counted();
  return (refusal == Refusal::kShare ? *request.own : all_).Beyond(request.counted());
}

int64_t BudgetAllocator::Reclaim(int64_t bytes, Account* own, Refusal refusal) {
  if (reclaimer_ == nullptr) return 0;
  Account& account = own == nullptr ? all_ : *own;
  const int64_t before = account.window_reclaimed.load();
  int64_t reclaimed = reclaimer_->Reclaim(bytes, account.job.load());
  if (own != nullptr && refusal != Refusal::kShare && reclaimed < bytes) {
    reclaimed += reclaimer_->Reclaim(bytes - reclaimed, 0);
  }
  if (reclaimed > 0) {
    // Tensors leave whole: what was lacking is less than what they are.
    RaiseTo(before + bytes, &account.window_lack);
    account.window_reclaimed.fetch_add(reclaimed);
  }
  return reclaimed;
}

bool BudgetAllocator::MustDefer() const {
  const KernelScope* scope = KernelScope::current;
  if (scope == nullptr || scope->role != KernelScope::Role::kSwapIn) return false;
  const Account* own = AccountOf(scope->job);
  return (own == nullptr ? all_ : *own).waiting_kernels.load() > 0;
}

void* BudgetAllocator::ObtainNow(const Request& request, Refusal* refusal) {
  if (Reclaim(Missing(request, *refusal), request.own, *refusal) == 0) return nullptr;
  return Obtain(request, refusal);
}

void* BudgetAllocator::ObtainOrWait(const Request& request, Refusal* refusal) {
  const int64_t start_ns = NowNs();
  KernelScope* scope = KernelScope::current;
  const bool in_kernel = scope != nullptr && scope->role == KernelScope::Role::kKernel;
  const std::array<Account*, 2> accounts = {&all_, request.own};
  waiting_.fetch_add(1);
  for (Account* each : accounts) {
    if (each == nullptr) continue;
    each->waits.fetch_add(1, std::memory_order_relaxed);
    if (in_kernel) each->waiting_kernels.fetch_add(1);
  }

  void* ptr = nullptr;
  const Account* refusing = &Refusing(*refusal, request.own);
  int64_t seen_releases = refusing->releases.load();
  int64_t seen_ends = refusing->ends.load();
  AllocationWaitPolicy patience(AllocationWaitPolicy::Now());
  for (;;) {
    const bool quiet = patience.WithoutRelease() > kDeference;
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
    // What others leave is no use where it is the job's share that is exhausted.
    if (const Account* now = &Refusing(*refusal, request.own); now != refusing) {
      refusing = now;
      seen_releases = now->releases.load();
      seen_ends = now->ends.load();
    }
    // Read first: what has left by the time that `missing` is read is then in neither.
    const int64_t leaving =
        reclaimer_ != nullptr ? reclaimer_->BytesLeaving(refusing->job.load()) : 0;
    const int64_t missing = Missing(request, *refusal);
    const bool copying_in = reclaimer_ != nullptr && reclaimer_->IsCopyingIn();
    const int64_t reclaimed =
        missing > leaving ? Reclaim(missing - leaving, request.own, *refusal) : 0;
    const bool released = refusing->releases.load() != seen_releases;
    if (released) seen_releases = refusing->releases.load();
    // A kernel that waits for memory frees none, so only the others count as life: those that run
    // now, and those that came and went between two looks.
    const int64_t ends = refusing->ends.load();
    const bool others_run = refusing->running.load() > refusing->waiting_kernels.load() ||
                            std::exchange(seen_ends, ends) != ends;
    const bool alive = leaving > 0 || reclaimed > 0 || copying_in || others_run;
    if (patience.ShouldStop(AllocationWaitPolicy::Now(), released, alive, OthersAreRunnable)) break;
    if (released) continue;
    std::unique_lock<std::mutex> lock(wait_mu_);
    if (refusing->releases.load() == seen_releases) freed_.wait_for(lock, kPollInterval);
  }

  for (Account* each : accounts) {
    if (each != nullptr && in_kernel) each->waiting_kernels.fetch_sub(1);
  }
  waiting_.fetch_sub(1);
  const int64_t waited_ns = NowNs() - start_ns;
  wait_ns_.fetch_add(waited_ns, std::memory_order_relaxed);
  if (scope != nullptr) scope->wait_ns += waited_ns;
  return ptr;
}

void BudgetAllocator::Release(int64_t bytes, Account* own) {
  Unreserve(bytes, own);
  NotifyFreed(own);
}

void BudgetAllocator::NotifyFreed(Account* own) {
  if (waiting_.load() == 0) return;
  all_.releases.fetch_add(1);
  if (own != nullptr) own->releases.fetch_add(1);
  std::lock_guard<std::mutex> lock(wait_mu_);
  freed_.notify_all();
}

Shortage BudgetAllocator::ShortageOf(const Request& request, Refusal refusal) {
  const int64_t bytes = request.counted();
  const int job = request.own == nullptr ? 0 : request.own->job.load();
  const int refusing = refusal == Refusal::kShare ? job : 0;
  const int64_t everybodys = refusing == 0 ? 0 : EverybodysBytes();
  const BudgetStats stats = Stats(refusing);
  Shortage found;
  if (holders_ != nullptr) found.holders = holders_->Holders(job);
  const auto& annotation = tsl::profiler::ScopedMemoryDebugAnnotation::CurrentAnnotation();
  found.op = annotation.pending_op_name;
  found.bytes = bytes;
  found.budget = everybodys + stats.budget_bytes;
  found.in_use = everybodys + stats.bytes_in_use;
  found.of_device = refusal == Refusal::kShare ? all_.limit.load() : 0;
  found.in_pieces = refusal == Refusal::kFragments;
  found.staying = everybodys + BytesAtStart(annotation.pending_step_id);
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
  if (eager ||
      found.staying == everybodys) {  // there is no step to move anything in, as far as is known
    found.staying = found.in_use;
    found.own = bytes;
  }

  const size_t named = std::min<size_t>(5, found.holders.size());
  std::partial_sort(found.holders.begin(), found.holders.begin() + named, found.holders.end(),
                    [](const Holder& a, const Holder& b) { return a.bytes > b.bytes; });
  found.holders.resize(named);

  if (spare_ != nullptr) found.picture = spare_->Picture();
  if (reclaimer_ != nullptr) {
    found.swapping = reclaimer_->InForce();
    found.missing_far_bytes = std::max<int64_t>(found.in_use + bytes - found.budget, bytes);
    found.hindrance = reclaimer_->WhyBlocked(found.missing_far_bytes);
  }
  return found;
}

}  // namespace tfswap
