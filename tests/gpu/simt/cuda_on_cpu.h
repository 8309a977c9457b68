// What tfswap's kernels need of CUDA's language, for a C++ compiler: included before the kernels
// (-include), it lets the same source run on the CPU.
//
// A block's threads are fibers that run one at a time and change places where CUDA's threads wait
// for one another: at barriers, and where a warp's lanes exchange numbers. Which one goes on is
// chance, so a barrier that is missing shows as wrong bytes. Asynchronous copies happen at once or
// when they are waited for, by chance too. Lanes that meet at different places, and barriers that
// not all threads reach, end the program with a message.

#ifndef TFSWAP_TESTS_GPU_SIMT_CUDA_ON_CPU_H_
#define TFSWAP_TESTS_GPU_SIMT_CUDA_ON_CPU_H_

#include <algorithm>
#include <cstdint>
#include <cstring>

#define __global__
#define __device__
#define __launch_bounds__(...)
// Of a block; each thread of the host runs one block at a time.
#define __shared__ static thread_local

struct alignas(16) uint4 {
  uint32_t x, y, z, w;
};
inline uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w) { return {x, y, z, w}; }

struct SimtIndex {
  uint32_t x, y, z;
};
extern __thread SimtIndex threadIdx, blockIdx, blockDim, gridDim;

using std::min;

// What fibers change places at: kernels.cc does not know how (simt.cc).
enum SimtExchange { kSimtBallot, kSimtShuffle, kSimtWarpBarrier };
// The values of all lanes of the warp.
const uint64_t* SimtExchangeValues(SimtExchange what, uint32_t lanes, uint64_t value);
void SimtBlockBarrier();
void SimtCopyLater(void* to, const void* from, size_t bytes);
void SimtCommitCopies();
void SimtWaitForCopies(size_t groups_left);

inline void __syncthreads() { SimtBlockBarrier(); }
inline void __syncwarp(uint32_t lanes = 0xffffffffu) {
  SimtExchangeValues(kSimtWarpBarrier, lanes, 0);
}
inline uint32_t __ballot_sync(uint32_t lanes, int predicate) {
  const uint64_t* values = SimtExchangeValues(kSimtBallot, lanes, predicate != 0);
  uint32_t mask = 0;
  for (uint32_t lane = 0; lane < 32; ++lane) mask |= static_cast<uint32_t>(values[lane]) << lane;
  return mask;
}
inline uint32_t __shfl_sync(uint32_t lanes, uint32_t value, uint32_t lane) {
  return static_cast<uint32_t>(SimtExchangeValues(kSimtShuffle, lanes, value)[lane % 32]);
}
inline uint32_t __shfl_up_sync(uint32_t lanes, uint32_t value, uint32_t distance) {
  const uint64_t* values = SimtExchangeValues(kSimtShuffle, lanes, value);
  const uint32_t lane = threadIdx.x % 32;
  return lane < distance ? value : static_cast<uint32_t>(values[lane - distance]);
}
inline uint32_t __shfl_xor_sync(uint32_t lanes, uint32_t value, uint32_t bits) {
  const uint64_t* values = SimtExchangeValues(kSimtShuffle, lanes, value);
  return static_cast<uint32_t>(values[(threadIdx.x ^ bits) % 32]);
}
inline int __popc(uint32_t bits) { return __builtin_popcount(bits); }
inline void __threadfence() {}  // atomics of the host's processor keep their order

template <typename T>
T atomicAdd(T* to, T value) {
  return __atomic_fetch_add(to, value, __ATOMIC_RELAXED);
}
template <typename T>
T atomicExch(T* to, T value) {
  return __atomic_exchange_n(to, value, __ATOMIC_RELAXED);
}

#endif  // TFSWAP_TESTS_GPU_SIMT_CUDA_ON_CPU_H_
