#ifndef TFSWAP_CC_CORE_GPU_GPU_STEP_H_
#define TFSWAP_CC_CORE_GPU_GPU_STEP_H_

#include <cstdint>
#include <vector>

#include "core/gpu/gpu_clock.h"
#include "core/simulate/trace.h"

namespace tfswap {

// Who did what on the host in a recording, beside its StepTrace.
struct HostSide {
  struct Op {
    int32_t thread = -1;
    int32_t begin_mark = -1;  // -1, and so is the end: it ended on another thread, or has no marks
    int32_t end_mark = -1;
  };
  struct Buffer {
    int32_t alloc_thread = -1;
    int32_t free_thread = -1;
  };
  std::vector<Op> ops;  // as in the trace
  std::vector<Buffer> buffers;
};

// Moves a recording from the host's time to the GPU's.
//
//   host     |op A| free X |op B: alloc Y|                       the host runs ahead
//   GPU                  |------ op A ------| wait |---- op B ----|
//   trace                 |------ op A ------X------Y--- op B ----|
//
// An op lasts from its first mark, or from the end of what compute ran before it, to its second
// one; what compute waited meanwhile, for copies or for a host that waited for memory, is its
// `wait_ns`. Memory follows the order of the host, which
// is the order in which it is handed out: what happens on a thread while it gives an op to the GPU
// happens in that op, and what happens between two of its ops happens between those, where the
// other threads' ops say when. A buffer is there as long as an op that uses it runs.
void MoveToCard(const GpuTimes& gpu, const HostSide& host, StepTrace* trace);

}  // namespace tfswap

#endif  // TFSWAP_CC_CORE_GPU_GPU_STEP_H_
