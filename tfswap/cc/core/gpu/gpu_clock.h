#ifndef TFSWAP_CC_CORE_GPU_GPU_CLOCK_H_
#define TFSWAP_CC_CORE_GPU_GPU_CLOCK_H_

#include <cstdint>
#include <utility>
#include <vector>

namespace tfswap {

// The times that a GPU's clock recorded, in ns on the host's time axis.
struct GpuTimes {
  std::vector<int64_t> marks_ns;                   // by mark, ascending
  std::vector<std::pair<int64_t, int64_t>> waits;  // when compute waited for a copy, in order
};

// Measures when the GPU runs commands while a step is recorded. Thread-safe.
class GpuClock {
 public:
  virtual ~GpuClock() = default;

  // Start recording. Blocks until the GPU is idle.
  virtual void Start() = 0;
  // Add a mark after all commands given to compute so far and return its number, counted from 0; -1
  // on failure.
  virtual int32_t Mark() = 0;
  // End recording. Blocks until the last mark is reached.
  virtual GpuTimes Stop() = 0;
};

}  // namespace tfswap

#endif  // TFSWAP_CC_CORE_GPU_GPU_CLOCK_H_
