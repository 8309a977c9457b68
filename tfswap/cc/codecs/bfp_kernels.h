#ifndef TFSWAP_CC_CODECS_BFP_KERNELS_H_
#define TFSWAP_CC_CODECS_BFP_KERNELS_H_

#include <cstddef>
#include <cstdint>

namespace tfswap {

// The inner loops of block floating point (codecs/bfp.h), over *blocks* of 32 *rows* of 16 float32.
// A row has one step, a power of two; a value is kept as a number of steps, in `bits` bits. So one
// block is 32 bytes of steps and, for each of 16 lanes, 32 numbers one behind the other:
//
//   | step 0 .. 31 | lane 0, bits 0..31 | .. | lane 15, bits 0..31 | lane 0, bits 32..63 | ..
//
// Loops for wider registers do more lanes at once, and write the same bytes.
constexpr size_t kBfpRows = 32;
constexpr size_t kBfpRowBytes = 64;
constexpr size_t kBfpBlockBytes = kBfpRows * kBfpRowBytes;

constexpr size_t BfpEncodedBytes(int bits) {
  return kBfpRows + static_cast<size_t>(bits) * kBfpRowBytes;
}

// The exponents of steps, as float32 has them. The least one is such that what is less than half of
// it is what has an exponent of 0: whether the processor takes that for zero does not matter.
constexpr int kBfpLeastStep = 2, kBfpMostStep = 253;
// Of so many bits, steps are numbers with an exponent, and numbers of steps are exact in float32.
constexpr int kBfpLeastBits = 3, kBfpMostBits = 23;

// Pointers need no alignment. `bits` is within the above.
struct BfpKernels {
  // False: a value is not finite, and what is in `to` is undefined.
  bool (*encode)(const char* from, size_t blocks, int bits, char* to);
  // False: a step is none that is written. `past_cache`: the values are not read soon.
  bool (*decode)(const char* from, size_t blocks, int bits, char* to, bool past_cache);
};

// In bfp_kernels_<path>.cc; null where this build has none.
const BfpKernels* PortableBfpKernels();
const BfpKernels* Avx2BfpKernels();
const BfpKernels* Avx512BfpKernels();

}  // namespace tfswap

#endif  // TFSWAP_CC_CODECS_BFP_KERNELS_H_
