#ifndef TFSWAP_CC_CORE_GPU_GPU_STEP_H_
#define TFSWAP_CC_CORE_GPU_GPU_STEP_H_

#include <cstdint>
#include <vector>

#include "core/gpu/gpu_clock.h"
#include "core/simulate/trace.h"

namespace tfswap {

// The host threads and GPU marks of a recording, besides its StepTrace.
struct HostRecording {
  struct Op {
    int32_t thread = -1;
    int32_t begin_mark = -1;  // -1, like end_mark: ended on another thread, or no marks
    int32_t end_mark = -1;
  };
  struct Buffer {
    int32_t alloc_thread = -1;
    int32_t free_thread = -1;
  };
  std::vector<Op> ops;  // as in the trace
  std::vector<Buffer> buffers;
};

// Convert the times of a recording from the host's to the GPU's.
//
//   host     |op A| free X |op B: alloc Y|                       the host runs ahead
//   GPU                  |------ op A ------| wait |---- op B ----|
//   trace                 |------ op A ------X------Y--- op B ----|
//
// An op lasts from its first mark, or from the end of the previous op on compute, to its second
// mark; the time in which compute waited, for copies or for a host that waited for memory, is its
// `wait_ns`. Allocations and frees follow the order of the host, which manages the memory: those on
// a thread while it issues an op fall into that op, those between two ops of the thread fall
// between them, placed by the ops of other threads. A buffer lives at least as long as an op that
// uses it.
void ConvertToGpuTime(const GpuTimes& gpu, const HostRecording& host, StepTrace* trace);

}  // namespace tfswap

#endif  // TFSWAP_CC_CORE_GPU_GPU_STEP_H_
