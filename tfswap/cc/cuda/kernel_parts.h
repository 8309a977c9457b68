#ifndef TFSWAP_CC_CUDA_KERNEL_PARTS_H_
#define TFSWAP_CC_CUDA_KERNEL_PARTS_H_

#include <cstdint>

#include "cuda/codec_format.h"

// Helpers shared by the codec kernels. Use only features that tests/gpu/simt emulates: the tests
// run them on the CPU.
namespace tfswap::gpu_codec {

constexpr uint32_t kUnitBytes = sizeof(uint4);  // the size of one access of a thread

// The bytes of a section of a tensor.
inline __device__ uint32_t BytesOf(uint32_t section, uint64_t bytes,
                                   uint32_t section_bytes = kSectionBytes) {
  const uint64_t left = bytes - uint64_t{section} * section_bytes;
  return left < section_bytes ? static_cast<uint32_t>(left) : section_bytes;
}

inline __device__ void Store(unsigned char* to, const uint4* from, uint32_t bytes) {
  const uint32_t units = bytes / kUnitBytes;
  for (uint32_t i = threadIdx.x; i < units; i += blockDim.x) {
    reinterpret_cast<uint4*>(to)[i] = from[i];
  }
  const auto* from_bytes = reinterpret_cast<const unsigned char*>(from);
  for (uint32_t i = units * kUnitBytes + threadIdx.x; i < bytes; i += blockDim.x) {
    to[i] = from_bytes[i];
  }
}

inline __device__ void Fill(unsigned char* to, uint32_t word, uint32_t bytes) {
  const uint32_t units = bytes / kUnitBytes;
  for (uint32_t i = threadIdx.x; i < units; i += blockDim.x) {
    reinterpret_cast<uint4*>(to)[i] = make_uint4(word, word, word, word);
  }
  for (uint32_t i = units * kUnitBytes + threadIdx.x; i < bytes; i += blockDim.x) {
    to[i] = static_cast<unsigned char>(word);
  }
}

// Store to the host: each warp's store starts at a line, whatever the alignment of `to`.
inline __device__ void StoreLines(unsigned char* to, const uint4* from, uint32_t units) {
  const auto into_line =
      static_cast<uint32_t>(reinterpret_cast<uintptr_t>(to) % kFarLineBytes / kUnitBytes);
  for (uint32_t i = threadIdx.x; i < into_line + units; i += blockDim.x) {
    if (i >= into_line) reinterpret_cast<uint4*>(to)[i - into_line] = from[i - into_line];
  }
}

// Add up the results of all blocks; return true to one thread, of the last block, after all others.
// Resets the tally for the next launch.
inline __device__ bool IsLast(Tally* tally, unsigned long long words, Tally* found) {
  if (threadIdx.x != 0) return false;
  atomicAdd(&tally->words, words);
  __threadfence();
  if (atomicAdd(&tally->finished, 1u) != gridDim.x - 1) return false;
  __threadfence();
  found->units = atomicExch(&tally->units, 0ull);
  found->words = atomicExch(&tally->words, 0ull);
  atomicExch(&tally->finished, 0u);
  return true;
}

}  // namespace tfswap::gpu_codec

#endif  // TFSWAP_CC_CUDA_KERNEL_PARTS_H_
