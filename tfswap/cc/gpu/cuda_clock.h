#ifndef TFSWAP_CC_GPU_CUDA_CLOCK_H_
#define TFSWAP_CC_GPU_CUDA_CLOCK_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <utility>
#include <vector>

#include "core/gpu/gpu_clock.h"
#include "gpu/cuda_driver.h"

namespace tfswap {

// Implements marks as timed events on the compute stream. They cost a microsecond or two each, in
// recorded steps only. No lock is held while the host waits for the GPU, because the GPU may wait
// for a host function.
class CudaClock : public GpuClock {
 public:
  // Notes a failed call and what it was for, and returns whether it succeeded.
  using Check = std::function<bool(const char* doing, CudaDriver::Result)>;

  CudaClock(const CudaDriver* driver, CudaDriver::Context context, CudaDriver::Stream compute,
            Check check)
      : driver_(driver), context_(context), compute_(compute), check_(std::move(check)) {}

  void Start() override;
  int32_t Mark() override;
  GpuTimes Stop() override;

  // Make compute wait by calling `wait`, and record when and how long it waited.
  void Wait(const std::function<void()>& wait);

 private:
  // Remove all marks and add the first one.
  bool Restart();
  // Call this with mu_ held and a current context.
  int32_t MarkLocked();

  const CudaDriver* const driver_;
  const CudaDriver::Context context_;
  const CudaDriver::Stream compute_;
  const Check check_;
  std::atomic<bool> running_{false};
  std::mutex mu_;
  int64_t start_ns_ = 0;                   // host time of the first mark
  std::vector<CudaDriver::Event> events_;  // by mark; reused by the next recording
  int32_t marks_ = 0;
  std::vector<std::pair<int32_t, int32_t>> waits_;  // marks before and after each wait
};

}  // namespace tfswap

#endif  // TFSWAP_CC_GPU_CUDA_CLOCK_H_
