#ifndef TFSWAP_CC_CODECS_BFP_KERNELS_H_
#define TFSWAP_CC_CODECS_BFP_KERNELS_H_

#include <cstddef>
#include <cstdint>

namespace tfswap {

// The inner loops of block floating point (codecs/bfp.h), over *blocks* of 32 *rows* of 16 float32.
// The values of a row share a step and have `bits` bits each. A block is 32 bytes of steps and, for
// each of 16 lanes, 32 packed integers:
//
//   | step 0 .. 31 | lane 0, bits 0..31 | .. | lane 15, bits 0..31 | lane 0, bits 32..63 | ..
//
// Loops for wider registers process more lanes at once and write the same bytes.
constexpr size_t kBfpRows = 32;
constexpr size_t kBfpRowBytes = 64;
constexpr size_t kBfpBlockBytes = kBfpRows * kBfpRowBytes;

constexpr size_t BfpEncodedBytes(int bits) {
  return kBfpRows + static_cast<size_t>(bits) * kBfpRowBytes;
}

// The exponents of steps in float32 encoding. The minimum is such that any subnormal value is less
// than half a step, so flushing subnormals to zero does not change the result.
constexpr int kBfpMinStep = 2, kBfpMaxStep = 253;
// With these numbers of bits, steps are normal numbers and the integers are exact in float32.
constexpr int kBfpMinBits = 3, kBfpMaxBits = 23;

// Pointers need no alignment; `bits` is in the range above.
struct BfpKernels {
  // Return false if a value is not finite; `to` is undefined then.
  bool (*encode)(const char* from, size_t blocks, int bits, char* to);
  // Return false if a step is invalid. `past_cache`: bypass the caches.
  bool (*decode)(const char* from, size_t blocks, int bits, char* to, bool past_cache);
};

// Defined in bfp_kernels_<path>.cc; null if this build has none.
const BfpKernels* PortableBfpKernels();
const BfpKernels* Avx2BfpKernels();
const BfpKernels* Avx512BfpKernels();

}  // namespace tfswap

#endif  // TFSWAP_CC_CODECS_BFP_KERNELS_H_
