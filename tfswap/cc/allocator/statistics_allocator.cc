#include "allocator/statistics_allocator.h"

#include "allocator/kernel_scope.h"
#include "core/util/atomic_max.h"

namespace tfswap {

void* StatisticsAllocator::AllocateRaw(size_t alignment, size_t num_bytes,
                                       const tensorflow::AllocationAttributes& attributes) {
  void* ptr = next()->AllocateRaw(alignment, num_bytes, attributes);
  if (ptr == nullptr) return nullptr;
  const auto bytes = static_cast<int64_t>(num_bytes);
  const bool in_part = KernelScope::PaysFor(bytes) < bytes;
  Grew(in_part ? static_cast<int64_t>(next()->RequestedSize(ptr)) : bytes);
  RaiseTo(bytes, &largest_);
  allocations_.fetch_add(1, std::memory_order_relaxed);
  return ptr;
}

void StatisticsAllocator::Grew(int64_t bytes) {
  const int64_t load = load_.fetch_add(bytes, std::memory_order_relaxed) + bytes;
  RaiseTo(load, &peak_);
  RaiseTo(load, &window_peak_);
}

void StatisticsAllocator::DeallocateRaw(void* ptr) {
  if (ptr == nullptr) return;
  load_.fetch_sub(static_cast<int64_t>(next()->RequestedSize(ptr)), std::memory_order_relaxed);
  next()->DeallocateRaw(ptr);
}

std::optional<tensorflow::AllocatorStats> StatisticsAllocator::GetStats() {
  tensorflow::AllocatorStats stats;
  stats.num_allocs = allocations_.load();
  stats.bytes_in_use = load_.load();
  stats.peak_bytes_in_use = peak_.load();
  stats.largest_alloc_size = largest_.load();
  const auto below = next()->GetStats();
  if (below.has_value()) stats.bytes_limit = below->bytes_limit;
  return stats;
}

bool StatisticsAllocator::ClearStats() {
  peak_.store(load_.load());
  largest_.store(0);
  allocations_.store(0);
  next()->ClearStats();
  return true;
}

}  // namespace tfswap
