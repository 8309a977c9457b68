#ifndef TFSWAP_CC_CODECS_BFP_H_
#define TFSWAP_CC_CODECS_BFP_H_

#include <cstddef>

namespace tfswap {

// Block floating point: a lossy codec for finite float32. Each 16 values share a step, a power of
// two, and each value is stored as an integer number of steps (round to nearest even, symmetric
// around 0):
//
//  rate_percent   11 .. 25 .. 50 .. 74 .. 99
//  bits            3     7    15    23    23   per integer with its sign: 32 * rate - 0.5 for the
//                                              step, rounded down
//
// With `largest` the largest magnitude of the 16, the error of a value is at most largest * 2^(1 -
// bits), or 2^-126 if that is more. Signs are kept, except that values rounded to 0, and -0, become
// +0.
//
// Whole blocks of 2 KiB are encoded to at most their rate; the rest is appended uncompressed. A
// rate below kMinBfpRate leaves no bits.
constexpr int kMinBfpRate = 11;

// Return the bytes written, which are fewer than `bytes`; 0 if a value is not finite, if there is
// no whole block, or at 100 percent, which requires lossless storage. May write any of to[0,
// bytes).
size_t EncodeBfp(int rate_percent, const char* from, size_t bytes, char* to);

// Return false if the input is malformed. `past_cache`: bypass the caches because the output is not
// read soon.
bool DecodeBfp(int rate_percent, const char* from, size_t encoded_bytes, char* to, size_t bytes,
               bool past_cache);

}  // namespace tfswap

#endif  // TFSWAP_CC_CODECS_BFP_H_
