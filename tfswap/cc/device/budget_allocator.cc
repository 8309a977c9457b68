#include "device/budget_allocator.h"

#include <algorithm>
#include <chrono>
#include <cstdio>

#include "device/kernel_scope.h"
#include "device/page_blocks.h"
#include "tensorflow/core/common_runtime/dma_helper.h"
#include "tensorflow/core/framework/cancellation.h"
#include "tsl/profiler/lib/scoped_memory_debug_annotation.h"

namespace tfswap {

using ::tensorflow::AllocationAttributes;
using ::tensorflow::Tensor;

namespace {

// Blocks below this are counted but neither listed nor traced.
constexpr int64_t kListedBytes = 4096;
// How long nothing at all may happen before a waiting allocation is given up: between two kernels
// an executor thread is busy without one, so "no kernel runs" alone is no proof.
constexpr auto kPatience = std::chrono::milliseconds(100);
constexpr auto kPatienceWhileBusy = std::chrono::seconds(60);
// How long a swap-in lets kernels that wait for memory go first: what they need is needed now.
constexpr auto kDeference = std::chrono::milliseconds(20);
constexpr auto kNap = std::chrono::milliseconds(2);

thread_local std::string last_failure;

int64_t NowNs() {
  return std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
}

BufferKind KindOf(absl::string_view region_type) {
  if (region_type == "output") return BufferKind::kOutput;
  if (region_type == "temp") return BufferKind::kTemp;
  return BufferKind::kOther;
}

void RaiseTo(int64_t value, std::atomic<int64_t>* maximum) {
  int64_t known = maximum->load(std::memory_order_relaxed);
  while (value > known && !maximum->compare_exchange_weak(known, value)) {
  }
}

const char* NameOf(BufferKind kind) {
  switch (kind) {
    case BufferKind::kOutput:
      return "output";
    case BufferKind::kTemp:
      return "temporary";
    case BufferKind::kOther:
      return "other";
  }
  return "other";
}

}  // namespace

thread_local KernelScope* KernelScope::current = nullptr;

std::string ReadableBytes(int64_t bytes) {
  char text[48];
  if (bytes >= int64_t{1} << 30) {
    std::snprintf(text, sizeof(text), "%.2f GiB", static_cast<double>(bytes) / (1 << 30));
  } else if (bytes >= 1 << 20) {
    std::snprintf(text, sizeof(text), "%.1f MiB", static_cast<double>(bytes) / (1 << 20));
  } else if (bytes >= 1 << 10) {
    std::snprintf(text, sizeof(text), "%.1f KiB", static_cast<double>(bytes) / (1 << 10));
  } else {
    std::snprintf(text, sizeof(text), "%lld bytes", static_cast<long long>(bytes));
  }
  return text;
}

struct alignas(64) BudgetAllocator::Header {
  Header* previous;
  Header* next;
  int64_t bytes;
  int64_t id;
  const std::string* op;  // null: a block too small to be listed
  int64_t step_id;
  uint32_t padding;  // from the base allocator's block to the user's
  BufferKind kind;
};

BudgetAllocator::BudgetAllocator(std::string name, tensorflow::Allocator* base)
    : name_(std::move(name)), base_(base) {}

BudgetAllocator::Header* BudgetAllocator::HeaderOf(const void* ptr) {
  static_assert(sizeof(Header) == 64, "the header must keep 64-byte alignment");
  return reinterpret_cast<Header*>(const_cast<char*>(static_cast<const char*>(ptr)) -
                                   sizeof(Header));
}

std::string BudgetAllocator::Name() {
  if (last_failure.empty()) return name_;
  std::string text = name_ + ". " + last_failure;
  last_failure.clear();
  return text;
}

void* BudgetAllocator::AllocateRaw(size_t alignment, size_t num_bytes) {
  return AllocateRaw(alignment, num_bytes, AllocationAttributes());
}

void* BudgetAllocator::AllocateRaw(size_t alignment, size_t num_bytes,
                                   const AllocationAttributes& attributes) {
  if (!last_failure.empty()) last_failure.clear();
  const int64_t bytes = static_cast<int64_t>(num_bytes);
  if (MustDefer() || !TryReserve(bytes)) {
    if (!attributes.retry_on_failure || !ReserveOrWait(bytes)) {
      if (KernelScope::current != nullptr && KernelScope::current->gave_way) return nullptr;
      failures_.fetch_add(1, std::memory_order_relaxed);
      last_failure = WhyNot(bytes);
      return nullptr;
    }
  }
  const size_t padding = std::max(alignment, sizeof(Header));
  const size_t whole = num_bytes + padding;
  char* block = static_cast<char*>(
      num_bytes >= kPageBlockBytes ? AllocatePageBlock(whole) : base_->AllocateRaw(padding, whole));
  if (block == nullptr) {
    Release(bytes);
    return nullptr;
  }
  allocations_.fetch_add(1, std::memory_order_relaxed);
  void* ptr = block + padding;
  Header* header = HeaderOf(ptr);
  *header = Header{};
  header->bytes = bytes;
  header->padding = static_cast<uint32_t>(padding);
  if (bytes >= kListedBytes) {
    const auto& annotation = tsl::profiler::ScopedMemoryDebugAnnotation::CurrentAnnotation();
    header->kind = KindOf(annotation.pending_region_type);
    header->step_id = annotation.pending_step_id;
    std::lock_guard<std::mutex> lock(blocks_mu_);
    header->id = next_id_++;
    header->op = &*names_.emplace(annotation.pending_op_name).first;
    header->next = blocks_;
    if (blocks_ != nullptr) blocks_->previous = header;
    blocks_ = header;
    if (recorder_.on()) recorder_.Allocated(bytes, *header->op, header->kind, ptr);
  }
  return ptr;
}

void BudgetAllocator::DeallocateRaw(void* ptr) {
  if (ptr == nullptr) return;
  Header* header = HeaderOf(ptr);
  const int64_t bytes = header->bytes;
  if (header->op != nullptr) {
    std::lock_guard<std::mutex> lock(blocks_mu_);
    if (header->previous != nullptr) header->previous->next = header->next;
    if (header->next != nullptr) header->next->previous = header->previous;
    if (blocks_ == header) blocks_ = header->next;
    if (recorder_.on()) recorder_.Freed(ptr);
  }
  const size_t padding = header->padding;
  char* block = static_cast<char*>(ptr) - padding;
  if (static_cast<size_t>(bytes) >= kPageBlockBytes) {
    FreePageBlock(block, bytes + padding);
  } else {
    base_->DeallocateRaw(block);
  }
  Release(bytes);
}

size_t BudgetAllocator::RequestedSize(const void* ptr) const { return HeaderOf(ptr)->bytes; }

int64_t BudgetAllocator::AllocationId(const void* ptr) const { return HeaderOf(ptr)->id; }

tensorflow::AllocatorMemoryType BudgetAllocator::GetMemoryType() const {
  return base_->GetMemoryType();
}

std::optional<tensorflow::AllocatorStats> BudgetAllocator::GetStats() {
  const BudgetStats stats = Stats();
  tensorflow::AllocatorStats answer;
  answer.num_allocs = stats.allocations;
  answer.bytes_in_use = stats.bytes_in_use;
  answer.peak_bytes_in_use = stats.peak_bytes;
  answer.largest_alloc_size = stats.largest_request_bytes;
  if (stats.budget_bytes > 0) answer.bytes_limit = stats.budget_bytes;
  return answer;
}

bool BudgetAllocator::ClearStats() {
  peak_.store(in_use_.load());
  largest_.store(0);
  allocations_.store(0);
  waits_.store(0);
  wait_ns_.store(0);
  failures_.store(0);
  return true;
}

void BudgetAllocator::SetBudget(int64_t budget_bytes) {
  budget_.store(budget_bytes);
  std::lock_guard<std::mutex> lock(wait_mu_);
  freed_.notify_all();
}

BudgetStats BudgetAllocator::Stats() const {
  BudgetStats stats;
  stats.budget_bytes = budget_.load();
  stats.bytes_in_use = in_use_.load();
  stats.peak_bytes = peak_.load();
  stats.window_peak_bytes = window_peak_.load();
  stats.largest_request_bytes = largest_.load();
  stats.allocations = allocations_.load();
  stats.waits = waits_.load();
  stats.wait_ns = wait_ns_.load();
  stats.failures = failures_.load();
  return stats;
}

void BudgetAllocator::KernelEnds() {
  running_.fetch_sub(1, std::memory_order_relaxed);
  if (waiting_.load() > 0) freed_.notify_all();
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

void BudgetAllocator::StartRecording() {
  std::lock_guard<std::mutex> lock(blocks_mu_);
  int64_t listed = 0;
  for (Header* block = blocks_; block != nullptr; block = block->next) listed += block->bytes;
  recorder_.Start(in_use_.load() - listed);
  for (Header* block = blocks_; block != nullptr; block = block->next) {
    recorder_.Present(block->bytes, *block->op, block->kind, block + 1);
  }
}

bool BudgetAllocator::TryReserve(int64_t bytes) {
  int64_t used = in_use_.load(std::memory_order_relaxed);
  const int64_t budget = budget_.load(std::memory_order_relaxed);
  do {
    if (budget > 0 && used + bytes > budget) return false;
  } while (!in_use_.compare_exchange_weak(used, used + bytes));
  RaiseTo(used + bytes, &peak_);
  RaiseTo(used + bytes, &window_peak_);
  RaiseTo(bytes, &largest_);
  return true;
}

bool BudgetAllocator::MustDefer() const {
  const KernelScope* scope = KernelScope::current;
  return scope != nullptr && scope->role == KernelScope::Role::kSwapIn &&
         waiting_kernels_.load() > 0;
}

bool BudgetAllocator::ReserveOrWait(int64_t bytes) {
  const int64_t start_ns = NowNs();
  KernelScope* scope = KernelScope::current;
  const bool in_kernel = scope != nullptr && scope->role == KernelScope::Role::kKernel;
  waits_.fetch_add(1, std::memory_order_relaxed);
  waiting_.fetch_add(1);
  if (in_kernel) waiting_kernels_.fetch_add(1);

  bool reserved = false;
  int64_t seen_releases = releases_.load();
  auto last_release = std::chrono::steady_clock::now();
  auto last_sign_of_life = last_release;
  for (;;) {
    const bool quiet = std::chrono::steady_clock::now() - last_release > kDeference;
    if ((quiet || !MustDefer()) && (reserved = TryReserve(bytes))) break;
    if (scope != nullptr && scope->give_way && scope->give_way()) {
      scope->gave_way = true;
      break;
    }
    if (scope != nullptr && scope->context->cancellation_manager() != nullptr &&
        scope->context->cancellation_manager()->IsCancelled()) {
      break;
    }
    const int64_t missing = in_use_.load() + bytes - budget_.load();
    const int64_t leaving = reclaimer_ != nullptr ? reclaimer_->BytesLeaving() : 0;
    const bool copying_in = reclaimer_ != nullptr && reclaimer_->IsCopyingIn();
    int64_t reclaimed = 0;
    if (reclaimer_ != nullptr && missing > leaving) {
      reclaimed = reclaimer_->Reclaim(missing - leaving);
    }
    const auto now = std::chrono::steady_clock::now();
    if (releases_.load() != seen_releases) {
      seen_releases = releases_.load();
      last_release = last_sign_of_life = now;
    }
    // A kernel that waits for memory frees none, so only the others count as life.
    if (leaving > 0 || reclaimed > 0 || copying_in || running_.load() > waiting_kernels_.load()) {
      last_sign_of_life = now;
    }
    if (now - last_sign_of_life > kPatience || now - last_release > kPatienceWhileBusy) break;
    std::unique_lock<std::mutex> lock(wait_mu_);
    if (releases_.load() == seen_releases) freed_.wait_for(lock, kNap);
  }

  if (in_kernel) waiting_kernels_.fetch_sub(1);
  waiting_.fetch_sub(1);
  const int64_t waited_ns = NowNs() - start_ns;
  wait_ns_.fetch_add(waited_ns, std::memory_order_relaxed);
  if (scope != nullptr) scope->wait_ns += waited_ns;
  return reserved;
}

void BudgetAllocator::Release(int64_t bytes) {
  in_use_.fetch_sub(bytes);
  if (waiting_.load() == 0) return;
  releases_.fetch_add(1);
  std::lock_guard<std::mutex> lock(wait_mu_);
  freed_.notify_all();
}

std::vector<BudgetAllocator::Holder> BudgetAllocator::Holders() {
  std::vector<Holder> holders;
  std::lock_guard<std::mutex> lock(blocks_mu_);
  for (Header* block = blocks_; block != nullptr; block = block->next) {
    holders.push_back({*block->op, NameOf(block->kind), block->bytes, block->step_id});
  }
  return holders;
}

std::string BudgetAllocator::WhyNot(int64_t bytes) {
  std::vector<Holder> holders = Holders();
  const auto& annotation = tsl::profiler::ScopedMemoryDebugAnnotation::CurrentAnnotation();
  const std::string op(annotation.pending_op_name);

  // What no swap can take away: what was there before the step, and what this op needs at once.
  const int64_t staying = BytesAtStart(annotation.pending_step_id);
  int64_t own = bytes;
  for (const Holder& holder : holders) {
    if (holder.step_id == annotation.pending_step_id && holder.op == op) own += holder.bytes;
  }
  if (KernelScope::current != nullptr) {
    tensorflow::OpKernelContext* context = KernelScope::current->context;
    std::unordered_set<const void*> seen;
    for (int i = 0; i < context->num_inputs(); ++i) {
      if (!context->has_input(i) || context->input_is_ref(i)) continue;
      const Tensor& input = context->input(i);
      const auto* buffer = tensorflow::DMAHelper::buffer(&input);
      if (buffer != nullptr && seen.insert(buffer->data()).second) own += input.TotalBytes();
    }
  }
  // With swaps in force all that could be moved has been moved: no less than this gets past here.
  const bool swapping = reclaimer_ != nullptr && reclaimer_->InForce();
  const int64_t smallest = swapping ? in_use_.load() + bytes : staying + own;

  std::partial_sort(holders.begin(), holders.begin() + std::min<size_t>(5, holders.size()),
                    holders.end(),
                    [](const Holder& a, const Holder& b) { return a.bytes > b.bytes; });
  holders.resize(std::min<size_t>(5, holders.size()));

  std::string text = "tfswap: the memory budget of " + ReadableBytes(budget_.load()) +
                     " is exceeded: op '" + op + "' asks for " + ReadableBytes(bytes) + " while " +
                     ReadableBytes(in_use_.load()) + " are in use. Largest holders:";
  for (size_t i = 0; i < holders.size(); ++i) {
    text += (i == 0 ? " " : ", ") + ReadableBytes(holders[i].bytes) + " " +
            (holders[i].op.empty() ? "(made outside of any op)"
                                   : "'" + holders[i].op + "' (" + holders[i].kind + ")");
  }
  text += ". The smallest budget that could work is " + ReadableBytes(smallest) + ": ";
  if (swapping) {
    text +=
        "nothing of what is in use can be moved while this op runs. Raise the budget, or train "
        "with a smaller batch.";
  } else {
    text += ReadableBytes(staying) + " that stay (weights, optimiser state, batch) and " +
            ReadableBytes(own) + " that this op needs at once.";
    if (smallest <= budget_.load()) {
      text += " Train with tfswap.AutoSwap(budget=...) to have the rest moved out of the way.";
    }
  }
  const std::string hindrance = reclaimer_ != nullptr ? reclaimer_->Hindrance() : "";
  if (!hindrance.empty()) text += " " + hindrance;
  return text;
}

}  // namespace tfswap
