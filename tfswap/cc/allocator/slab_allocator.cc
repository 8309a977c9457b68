#include "allocator/slab_allocator.h"

#include <unistd.h>

#include <new>

#include "allocator/kernel_scope.h"
#include "tsl/profiler/lib/scoped_memory_debug_annotation.h"

namespace tfswap {

namespace {

// Smaller ones are not worth a slot: those that are not recorded either.
constexpr size_t kLeastBytes = RecordingAllocator::kListedBytes + RecordingAllocator::kHeaderBytes;

void Count(std::atomic<int64_t>* counter, int64_t by = 1) {
  counter->fetch_add(by, std::memory_order_relaxed);
}

int64_t PhysicalBytes() {
  return static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE);
}

}  // namespace

SlabAllocator::SlabAllocator(tensorflow::Allocator* next, MemoryAccount* account,
                             std::function<void()> freed)
    : Adaptor(next), account_(account), freed_(std::move(freed)) {}

void* SlabAllocator::AllocateRaw(size_t alignment, size_t num_bytes,
                                 const tensorflow::AllocationAttributes& attributes) {
  if (layouts_.active() && num_bytes >= kLeastBytes) {
    const auto bytes = static_cast<int64_t>(num_bytes);
    const Slot* slot = NextSlot();
    if (slot != nullptr && slot->offset == kOutside) {
      Count(&lasting_);
      Count(&lasting_bytes_, bytes);
    } else {
      void* ptr = Take(slot, alignment, bytes);
      if (ptr == nullptr) ptr = Instead(alignment, num_bytes);
      if (ptr != nullptr) return ptr;
      Count(&missed_);
      Count(&missed_bytes_, bytes);
    }
  }
  return next()->AllocateRaw(alignment, num_bytes, attributes);
}

const Slot* SlabAllocator::NextSlot() {
  KernelScope* scope = KernelScope::current;
  if (scope == nullptr || scope->planned == nullptr) return nullptr;
  const auto& annotation = tsl::profiler::ScopedMemoryDebugAnnotation::CurrentAnnotation();
  const int kind = static_cast<int>(KindOfRegion(annotation.pending_region_type));
  const std::vector<Slot>& slots = scope->planned->slots[kind];
  const uint32_t ordinal = scope->made[kind]++;
  return ordinal < slots.size() && slots[ordinal].offset != -1 ? &slots[ordinal] : nullptr;
}

void* SlabAllocator::Take(const Slot* slot, size_t alignment, int64_t bytes) {
  std::atomic<int64_t>* cause = &unplanned_;
  if (slot != nullptr) {
    cause = &other_size_;
    if (slot->bytes == bytes && alignment <= static_cast<size_t>(Slab::kGranuleBytes)) {
      const Slab::Claimed claimed = slab()->Claim(slot->offset, bytes);
      if (claimed == Slab::Claimed::kYes) {
        Count(&hits_);
        Count(&hit_bytes_, bytes);
        return slab()->At(slot->offset);
      }
      cause = claimed == Slab::Claimed::kNoMemory ? &no_room_ : &taken_;
    }
  }
  Count(cause);
  return nullptr;
}

void SlabAllocator::DeallocateRaw(void* ptr) {
  const Slab* own = slab();
  if (own == nullptr || !own->Owns(ptr)) {
    next()->DeallocateRaw(ptr);
    return;
  }
  slab()->Release(own->OffsetOf(ptr));
  if (freed_) freed_();
}

size_t SlabAllocator::RequestedSize(const void* ptr) const {
  const Slab* own = slab();
  if (own == nullptr || !own->Owns(ptr)) return next()->RequestedSize(ptr);
  return static_cast<size_t>(own->BytesOf(own->OffsetOf(ptr)));
}

int64_t SlabAllocator::AllocationId(const void* ptr) const {
  const Slab* own = slab();
  return own != nullptr && own->Owns(ptr) ? 0 : next()->AllocationId(ptr);
}

int64_t SlabAllocator::GiveBack(int64_t bytes) {
  return slab() == nullptr || bytes <= 0 ? 0 : slab()->Decommit(bytes);
}

void* SlabAllocator::Instead(size_t alignment, size_t bytes) {
  if (slab() == nullptr || !layouts_.active() || bytes < kLeastBytes ||
      alignment > static_cast<size_t>(Slab::kGranuleBytes)) {
    return nullptr;
  }
  const int64_t offset = slab()->ClaimAnywhere(static_cast<int64_t>(bytes));
  if (offset < 0) return nullptr;
  Count(&moved_);
  Count(&moved_bytes_, static_cast<int64_t>(bytes));
  return slab()->At(offset);
}

absl::Status SlabAllocator::Install(const std::string& graph, const std::string& text) {
  std::lock_guard<std::mutex> lock(mu_);
  if (slab() == nullptr) {
    try {
      owned_ = std::make_unique<Slab>(PhysicalBytes(), account_);
    } catch (const std::bad_alloc&) {
      return absl::ResourceExhaustedError(
          "no addresses for a slab: is vm.overcommit_memory 2, or the address space limited?");
    }
    slab_.store(owned_.get(), std::memory_order_release);
  }
  const absl::Status status = layouts_.Install(graph, text, Slab::kGranuleBytes);
  slab()->SetLimit(layouts_.height());
  return status;
}

void SlabAllocator::Remove(const std::string& graph) {
  std::lock_guard<std::mutex> lock(mu_);
  layouts_.Remove(graph);
  if (slab() != nullptr) slab()->SetLimit(layouts_.height());
}

void SlabAllocator::Clear() {
  std::lock_guard<std::mutex> lock(mu_);
  layouts_.Clear();
  if (slab() != nullptr) slab()->SetLimit(0);
}

void SlabAllocator::SetCheck(bool check) {
  std::lock_guard<std::mutex> lock(mu_);
  if (slab() != nullptr) slab()->SetCheck(check);
}

SlabAllocatorStats SlabAllocator::Stats() const {
  SlabAllocatorStats stats;
  if (slab() != nullptr) {
    stats.slab = slab()->Stats();
    stats.faults = slab()->faults();
  }
  stats.hits = hits_.load();
  stats.hit_bytes = hit_bytes_.load();
  stats.moved = moved_.load();
  stats.moved_bytes = moved_bytes_.load();
  stats.unplanned = unplanned_.load();
  stats.other_size = other_size_.load();
  stats.taken = taken_.load();
  stats.no_room = no_room_.load();
  stats.lasting = lasting_.load();
  stats.lasting_bytes = lasting_bytes_.load();
  stats.missed = missed_.load();
  stats.missed_bytes = missed_bytes_.load();
  return stats;
}

void SlabAllocator::ResetCounts() {
  for (auto* counter : {&hits_, &hit_bytes_, &moved_, &moved_bytes_, &unplanned_, &other_size_,
                        &taken_, &no_room_, &lasting_, &lasting_bytes_, &missed_, &missed_bytes_}) {
    counter->store(0);
  }
  if (slab() != nullptr) slab()->ResetPeak();
}

}  // namespace tfswap
