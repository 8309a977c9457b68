// The parts of CUDA's header of that name that the kernels use.

#ifndef TFSWAP_TESTS_GPU_SIMT_CUDA_PIPELINE_H_
#define TFSWAP_TESTS_GPU_SIMT_CUDA_PIPELINE_H_

#include "cuda_on_cpu.h"

inline void __pipeline_memcpy_async(void* to, const void* from, size_t bytes) {
  SimtCopyLater(to, from, bytes);
}
inline void __pipeline_commit() { SimtCommitCopies(); }
inline void __pipeline_wait_prior(size_t groups_left) { SimtWaitForCopies(groups_left); }

#endif  // TFSWAP_TESTS_GPU_SIMT_CUDA_PIPELINE_H_
