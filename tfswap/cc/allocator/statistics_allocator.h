#ifndef TFSWAP_CC_ALLOCATOR_STATISTICS_ALLOCATOR_H_
#define TFSWAP_CC_ALLOCATOR_STATISTICS_ALLOCATOR_H_

#include <atomic>

#include "allocator/adaptor.h"

namespace tfswap {

// Counts the load: the requested bytes, regardless of the memory that they use.
class StatisticsAllocator : public Adaptor {
 public:
  explicit StatisticsAllocator(tensorflow::Allocator* next) : Adaptor(next) {}

  using Adaptor::AllocateRaw;
  void* AllocateRaw(size_t alignment, size_t num_bytes,
                    const tensorflow::AllocationAttributes& attributes) override;
  void DeallocateRaw(void* ptr) override;
  std::optional<tensorflow::AllocatorStats> GetStats() override;
  bool ClearStats() override;

  // Restart the window's peak, which measures single steps. ClearStats() does not change it.
  void RestartWindow() { window_peak_.store(load_.load()); }
  int64_t window_peak_bytes() const { return window_peak_.load(); }

 protected:
  // Change the load for a block that is already counted.
  void Grew(int64_t bytes);
  void Shrank(int64_t bytes) { load_.fetch_sub(bytes, std::memory_order_relaxed); }

 private:
  std::atomic<int64_t> load_{0};
  std::atomic<int64_t> peak_{0};
  std::atomic<int64_t> window_peak_{0};
  std::atomic<int64_t> largest_{0};
  std::atomic<int64_t> allocations_{0};
};

}  // namespace tfswap

#endif  // TFSWAP_CC_ALLOCATOR_STATISTICS_ALLOCATOR_H_
