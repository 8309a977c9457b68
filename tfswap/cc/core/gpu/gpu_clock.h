#ifndef TFSWAP_CC_CORE_GPU_GPU_CLOCK_H_
#define TFSWAP_CC_CORE_GPU_GPU_CLOCK_H_

#include <cstdint>
#include <utility>
#include <vector>

namespace tfswap {

// What a GPU's clock said of a recording, in ns on the host's axis.
struct GpuTimes {
  std::vector<int64_t> marks_ns;                   // by mark, never falling
  std::vector<std::pair<int64_t, int64_t>> waits;  // when compute waited for a copy, in order
};

// When a GPU does what the host gives it, while a step is recorded. Thread-safe.
class GpuClock {
 public:
  virtual ~GpuClock() = default;

  // Recording begins. The host waits until the GPU has nothing left to do.
  virtual void Start() = 0;
  // A mark behind all that compute was given so far, counted from 0; -1 if there is none.
  virtual int32_t Mark() = 0;
  // Recording ends. The host waits for the last mark.
  virtual GpuTimes Stop() = 0;
};

}  // namespace tfswap

#endif  // TFSWAP_CC_CORE_GPU_GPU_CLOCK_H_
