// Runs kernels on the CPU; see cuda_on_cpu.h.

#ifndef TFSWAP_TESTS_GPU_SIMT_SIMT_H_
#define TFSWAP_TESTS_GPU_SIMT_SIMT_H_

#include <cstddef>
#include <cstdint>
#include <functional>

namespace simt {

// A kernel by name. `bind` reads the arguments from CUDA's array of pointers at once, because the
// body may run later.
struct Kernel {
  const char* name;
  std::function<void()> (*bind)(void** arguments);
};

// Return the kernel of that name; null if there is none.
const Kernel* Find(const char* name);
// Return the kernel at an address; null if there is none.
const Kernel* IfKernel(const void* address);
// Return the size of a variable of the kernels; 0 if there is none.
size_t VariableBytes(const char* name);

// Run `body` in each of `threads` threads of each of `blocks` blocks, spread over the host threads.
// The seed determines the order of threads.
void Launch(const std::function<void()>& body, uint32_t blocks, uint32_t threads, uint32_t seed,
            int host_threads = 1);

}  // namespace simt

#endif  // TFSWAP_TESTS_GPU_SIMT_SIMT_H_
