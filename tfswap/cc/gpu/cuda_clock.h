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

// Marks are events with times on the compute stream. They cost a microsecond or two each, in
// recorded steps only. While the host waits for the GPU no lock is held: the GPU may be waiting
// for a function of the host's.
class CudaClock : public GpuClock {
 public:
  CudaClock(const CudaDriver* driver, CudaDriver::Context context, CudaDriver::Stream compute)
      : driver_(driver), context_(context), compute_(compute) {}

  void Start() override;
  int32_t Mark() override;
  GpuTimes Stop() override;

  // Has compute wait by `wait`, and remembers when and how long it did.
  void Wait(const std::function<void()>& wait);

 private:
  // Forgets all marks, and makes the first one.
  bool Restart();
  // With mu_ held, in a current context.
  int32_t MarkLocked();

  const CudaDriver* const driver_;
  const CudaDriver::Context context_;
  const CudaDriver::Stream compute_;
  std::atomic<bool> running_{false};
  std::mutex mu_;
  int64_t start_ns_ = 0;                   // of the host, when the first mark happened
  std::vector<CudaDriver::Event> events_;  // by mark; kept for the next recording
  int32_t marks_ = 0;
  std::vector<std::pair<int32_t, int32_t>> waits_;  // marks before and behind each
};

}  // namespace tfswap

#endif  // TFSWAP_CC_GPU_CUDA_CLOCK_H_
