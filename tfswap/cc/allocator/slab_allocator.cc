#include "allocator/slab_allocator.h"

#include <unistd.h>

#include <limits>
#include <new>
#include <utility>

#include "allocator/kernel_scope.h"
#include "core/util/readable_bytes.h"
#include "core/util/rounding.h"
#include "tsl/profiler/lib/scoped_memory_debug_annotation.h"

namespace tfswap {

namespace {

// Smaller blocks get no slot; they are not recorded either.
constexpr size_t kMinBytes = RecordingAllocator::kListedBytes;

constexpr auto kMaxAlignment = static_cast<size_t>(Slab::kGranuleBytes);

// The allocation that this thread has passed on to the next allocator, which may come back through
// AllocateFallback().
struct PassedOn {
  const SlabAllocator* by = nullptr;
  const Slot* slot = nullptr;
  size_t bytes = 0;
};
thread_local PassedOn passed_on;

// Generous, because addresses cost nothing.
constexpr int64_t kMaxGpuBytes = int64_t{256} << 30;

int64_t PhysicalBytes() {
  return static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE);
}

}  // namespace

SlabAllocator::SlabAllocator(tensorflow::Allocator* next, MemoryAccount* account,
                             std::function<void()> freed)
    : SizedAdaptor(next), account_(account), freed_(std::move(freed)), on_gpu_(false) {}

SlabAllocator::SlabAllocator(tensorflow::Allocator* next, std::function<void()> freed)
    : SizedAdaptor(next), account_(nullptr), freed_(std::move(freed)), on_gpu_(true) {}

void* SlabAllocator::AllocateRaw(size_t alignment, size_t num_bytes,
                                 const tensorflow::AllocationAttributes& attributes) {
  if (num_bytes >= kMinBytes && Serves()) {
    const auto bytes = static_cast<int64_t>(num_bytes);
    const Slot* slot = NextSlot(bytes);
    const bool lasts = slot != nullptr && slot->offset == kOutside;
    // A small block would keep a chunk from being returned of which it needs a part.
    const bool is_small = !on_gpu_ && bytes < Slab::kChunkBytes;
    if (is_small && (slot == nullptr || lasts)) {
      return next()->AllocateRaw(alignment, num_bytes, attributes);
    }
    const Slot* wanted = nullptr;
    if (!lasts) {
      const Slab::Claimed claimed = Take(slot, alignment, bytes);
      if (claimed == Slab::Claimed::kYes) return slab()->At(slot->offset);
      if (claimed == Slab::Claimed::kNoMemory) wanted = slot;
    }
    // A block with a planned address waits for memory instead of using another address.
    if (wanted == nullptr && alignment <= kMaxAlignment) {
      if (void* ptr = AllocateUnplanned(lasts, bytes)) return ptr;
    }
    Count(kMissed, bytes);
    passed_on = {this, slot, num_bytes};
    void* ptr = next()->AllocateRaw(alignment, num_bytes, attributes);
    passed_on = {};
    return ptr;
  }
  return next()->AllocateRaw(alignment, num_bytes, attributes);
}

void SlabAllocator::Count(Counted served, int64_t bytes) {
  auto* row = counters_.ThisThreads();
  row->Add(served, 1);
  row->Add(served + 1, bytes);
}

void* SlabAllocator::AllocateUnplanned(bool lasts, int64_t bytes) {
  const int64_t offset =
      slab()->ClaimUnplanned(bytes, KernelScope::PaysFor(bytes), KernelScope::TakesIdle());
  if (offset < 0) return nullptr;
  Count(lasts ? kLasting : kMoved, bytes);
  return slab()->At(offset);
}

const Slot* SlabAllocator::NextSlot(int64_t bytes) {
  KernelScope* scope = KernelScope::current;
  if (scope == nullptr || !scope->planned) return nullptr;
  const auto& annotation = tsl::profiler::ScopedMemoryDebugAnnotation::CurrentAnnotation();
  const int kind = static_cast<int>(KindOfRegion(annotation.pending_region_type));
  return scope->planned->Find(kind, scope->made[kind]++, bytes);
}

Slab::Claimed SlabAllocator::Take(const Slot* slot, size_t alignment, int64_t bytes) {
  Slab::Claimed claimed = Slab::Claimed::kOutside;
  Counted cause = kUnplanned;
  if (slot != nullptr) {
    cause = kOtherSize;
    if (slot->bytes == bytes && alignment <= kMaxAlignment) {
      claimed = slab()->Claim(slot->offset, bytes, KernelScope::PaysFor(bytes));
      if (claimed == Slab::Claimed::kYes) {
        Count(kHits, bytes);
        return claimed;
      }
      cause = claimed == Slab::Claimed::kNoMemory ? kNoRoom : kTaken;
    }
  }
  counters_.ThisThreads()->Add(cause, 1);
  return claimed;
}

void SlabAllocator::DeallocateRaw(void* ptr) {
  if (!Owns(ptr)) {
    next()->DeallocateRaw(ptr);
    return;
  }
  slab()->Release(slab()->OffsetOf(ptr));
  if (!Serves()) {  // the block, such as a variable's value, has outlived its training
    std::lock_guard<std::mutex> lock(mu_);
    if (!Serves()) ReturnIdle();
  }
  Freed();
}

int64_t SlabAllocator::ReleaseEnd(void* ptr, int64_t kept_bytes,
                                  const std::function<void(int64_t)>& on_release) {
  const int64_t bytes = slab()->ReleaseEnd(slab()->OffsetOf(ptr), kept_bytes);
  if (bytes <= 0) return 0;
  on_release(bytes);
  Freed();
  return bytes;
}

void SlabAllocator::Freed() {
  if (account_ != nullptr && account_->OverBudgetBytes() > 0)
    slab()->Decommit(account_->OverBudgetBytes());
  if (freed_) freed_();
}

size_t SlabAllocator::RequestedSize(const void* ptr) const {
  if (!Owns(ptr)) return next()->RequestedSize(ptr);
  return static_cast<size_t>(slab()->BytesOf(slab()->OffsetOf(ptr)));
}

int64_t SlabAllocator::AllocationId(const void* ptr) const {
  return Owns(ptr) ? 0 : next()->AllocationId(ptr);
}

int64_t SlabAllocator::Release(int64_t bytes) {
  return slab() == nullptr || bytes <= 0 ? 0 : slab()->Decommit(bytes);
}

void* SlabAllocator::AllocateFallback(size_t alignment, size_t bytes) {
  if (passed_on.by != this || passed_on.bytes != bytes || alignment > kMaxAlignment) {
    return nullptr;
  }
  const auto size = static_cast<int64_t>(bytes);
  const Slot* slot = passed_on.slot;
  const bool lasts = slot != nullptr && slot->offset == kOutside;
  const int64_t pays = KernelScope::PaysFor(size);
  const bool at_its_place = slot != nullptr && !lasts && slot->bytes == size &&
                            slab()->Claim(slot->offset, size, pays) == Slab::Claimed::kYes;
  int64_t offset =
      at_its_place ? slot->offset : slab()->ClaimUnplanned(size, pays, KernelScope::TakesIdle());
  if (offset < 0) offset = slab()->ClaimPaid(size);
  if (offset < 0) return nullptr;
  // It was counted as missed when it was passed on.
  counters_.ThisThreads()->Add(kMissed, -1);
  counters_.ThisThreads()->Add(kMissedBytes, -size);
  Count(at_its_place ? kHits : lasts ? kLasting : kMoved, size);
  return slab()->At(offset);
}

std::string SlabAllocator::Picture() const {
  constexpr int64_t kWidth = 48;
  if (slab() == nullptr || !Serves()) return "";
  return "Addresses, low to high (# taken, + in part, . idle): " + slab()->Picture(kWidth) + ".";
}

absl::Status SlabAllocator::Install(const std::string& graph, const std::string& text) {
  std::lock_guard<std::mutex> lock(mu_);
  absl::Status status = MakeSlab();
  if (!status.ok()) return status;
  status = layouts_.Install(graph, text, Slab::kGranuleBytes);
  if (status.ok() && on_gpu_) {
    status = FitBlock();
    if (!status.ok()) layouts_.Remove(graph);
  }
  slab()->SetLimit(layouts_.height());
  // Do not charge blocks twice that had unplanned addresses and are planned now.
  if (!on_gpu_) slab()->Decommit(std::numeric_limits<int64_t>::max());
  return status;
}

absl::Status SlabAllocator::MakeSlab() {
  if (slab() != nullptr) return absl::OkStatus();
  try {
    owned_ = on_gpu_ ? Slab::BlockBacked(kMaxGpuBytes)
                     : std::make_unique<Slab>(PhysicalBytes(), account_);
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError(
        "no addresses for a slab: is vm.overcommit_memory 2, or the address space limited?");
  }
  slab_.store(owned_.get(), std::memory_order_release);
  return absl::OkStatus();
}

absl::Status SlabAllocator::SetAlways(bool always) {
  std::lock_guard<std::mutex> lock(mu_);
  if (on_gpu_) return absl::OkStatus();
  if (always) {
    const absl::Status status = MakeSlab();
    if (!status.ok()) return status;
  }
  always_.store(always);
  if (!always && slab() != nullptr) ReturnIdle();
  return absl::OkStatus();
}

void SlabAllocator::ReturnIdle() {
  if (on_gpu_) {
    DropBlock();
  } else {
    slab()->Decommit(std::numeric_limits<int64_t>::max());
  }
}

absl::Status SlabAllocator::FitBlock() {
  const int64_t height = RoundUp(layouts_.height(), Slab::kChunkBytes);
  if (slab()->Stats().committed_bytes >= height) return absl::OkStatus();
  if (block_ != nullptr && !DropBlock()) {
    return absl::FailedPreconditionError(
        "the slab is too low for it, and cannot be replaced while it is in use");
  }
  // A GPU's allocators align to less than a granule.
  const auto bytes = static_cast<size_t>(height + Slab::kGranuleBytes);
  tensorflow::AllocationAttributes attributes;
  attributes.retry_on_failure = false;
  block_ = next()->AllocateRaw(kMaxAlignment, bytes, attributes);
  if (block_ == nullptr) {
    return absl::ResourceExhaustedError("beside what stays there is no room for a slab of " +
                                        ReadableBytes(height));
  }
  auto* begin = reinterpret_cast<char*>(
      RoundUp(static_cast<int64_t>(reinterpret_cast<intptr_t>(block_)), Slab::kGranuleBytes));
  slab()->Attach(begin, height);
  return absl::OkStatus();
}

bool SlabAllocator::DropBlock() {
  if (slab()->Detach() == nullptr) return false;
  next()->DeallocateRaw(std::exchange(block_, nullptr));
  return true;
}

void SlabAllocator::Remove(const std::string& graph) {
  std::lock_guard<std::mutex> lock(mu_);
  layouts_.Remove(graph);
  if (slab() != nullptr) slab()->SetLimit(layouts_.height());
}

void SlabAllocator::Clear() {
  std::lock_guard<std::mutex> lock(mu_);
  layouts_.Clear();
  if (slab() == nullptr) return;
  slab()->SetLimit(0);
  ReturnIdle();
}

void SlabAllocator::SetCheck(bool check) {
  std::lock_guard<std::mutex> lock(mu_);
  if (slab() != nullptr) slab()->SetCheck(check);
}

SlabAllocatorStats SlabAllocator::Stats() const {
  SlabAllocatorStats stats = Counts();
  if (slab() != nullptr) {
    stats.slab = slab()->Stats();
    stats.faults = slab()->faults();
  }
  return stats;
}

SlabAllocatorStats SlabAllocator::Counts() const {
  SlabAllocatorStats stats;
  if (slab() != nullptr) stats.slab.limit_bytes = slab()->limit_bytes();
  const auto sums = counters_.Sums();
  stats.hits = sums[kHits];
  stats.hit_bytes = sums[kHitBytes];
  stats.moved = sums[kMoved];
  stats.moved_bytes = sums[kMovedBytes];
  stats.missed = sums[kMissed];
  stats.missed_bytes = sums[kMissedBytes];
  stats.lasting = sums[kLasting];
  stats.lasting_bytes = sums[kLastingBytes];
  stats.unplanned = sums[kUnplanned];
  stats.other_size = sums[kOtherSize];
  stats.taken = sums[kTaken];
  stats.no_room = sums[kNoRoom];
  return stats;
}

void SlabAllocator::ResetCounts() { counters_.Reset(); }

}  // namespace tfswap
