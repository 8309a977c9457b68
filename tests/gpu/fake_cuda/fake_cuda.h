// What the simulated GPU's parts share.

#ifndef TFSWAP_TESTS_GPU_FAKE_CUDA_FAKE_CUDA_H_
#define TFSWAP_TESTS_GPU_FAKE_CUDA_FAKE_CUDA_H_

#include <functional>

namespace fake_cuda {

// Run a kernel in stream order. Blocks while the stream is full. It calls `compute` if the GPU
// computes (FAKE_CUDA_GEMM), and otherwise only takes some time.
void RunKernel(void* stream, std::function<void()> compute);

// Return what a kernel of TensorFlow computes; null if that is unknown. Reads the arguments from
// CUDA's array of pointers at once.
std::function<void()> TensorFlowKernel(const void* kernel, void** arguments);

}  // namespace fake_cuda

#endif  // TFSWAP_TESTS_GPU_FAKE_CUDA_FAKE_CUDA_H_
