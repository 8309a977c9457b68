// The parts of CUDA's language that tfswap's kernels need, for a C++ compiler. Included before the
// kernels (-include), it makes the same source run on the CPU.
//
// A block's threads are fibers. One runs at a time, and they switch where CUDA's threads wait for
// each other: at barriers, and where a warp's lanes exchange numbers. The next fiber is random, so
// a missing barrier shows as wrong bytes. Asynchronous copies happen at once or when they are
// waited for, at random too. The program ends with a message if lanes meet at different places, or
// if not all threads reach a barrier.

#ifndef TFSWAP_TESTS_GPU_SIMT_CUDA_ON_CPU_H_
#define TFSWAP_TESTS_GPU_SIMT_CUDA_ON_CPU_H_

#include <algorithm>
#include <cstdint>
#include <cstring>

#define __global__
#define __device__
#define __launch_bounds__(...)
// Shared by a block; each host thread runs one block at a time.
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

// Where fibers switch; implemented in simt.cc, unknown to kernels.cc.
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
inline void __threadfence() {}  // the host's atomics keep their order

template <typename T>
T atomicAdd(T* to, T value) {
  return __atomic_fetch_add(to, value, __ATOMIC_RELAXED);
}
template <typename T>
T atomicExch(T* to, T value) {
  return __atomic_exchange_n(to, value, __ATOMIC_RELAXED);
}

#endif  // TFSWAP_TESTS_GPU_SIMT_CUDA_ON_CPU_H_
