// Runs kernels on the CPU (cuda_on_cpu.h says how).

#ifndef TFSWAP_TESTS_GPU_SIMT_SIMT_H_
#define TFSWAP_TESTS_GPU_SIMT_SIMT_H_

#include <cstddef>
#include <cstdint>
#include <functional>

namespace simt {

// A kernel, and how it is called with CUDA's array of pointers to its arguments, which are read at
// once: the body may run later.
struct Kernel {
  const char* name;
  std::function<void()> (*bind)(void** arguments);
};

// Null if there is none of that name.
const Kernel* Find(const char* name);
// Null if it is the address of something else.
const Kernel* IfKernel(const void* address);
// Of a variable of the kernels'; 0 if there is none.
size_t VariableBytes(const char* name);

// Runs `body` in each of `threads` threads of each of `blocks` blocks, which are spread over so
// many threads of the host. The seed decides who goes when.
void Launch(const std::function<void()>& body, uint32_t blocks, uint32_t threads, uint32_t seed,
            int host_threads = 1);

}  // namespace simt

#endif  // TFSWAP_TESTS_GPU_SIMT_SIMT_H_
