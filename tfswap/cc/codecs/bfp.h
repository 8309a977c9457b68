#ifndef TFSWAP_CC_CODECS_BFP_H_
#define TFSWAP_CC_CODECS_BFP_H_

#include <cstddef>

namespace tfswap {

// Block floating point, lossy, for finite float32. 16 values have one step, a power of two, and
// each is a number of steps, the nearest one and of two the even one, symmetrically to 0:
//
//   rate_percent   11 .. 25 .. 50 .. 74 .. 99
//   bits            3     7    15    23    23   of a number, with its sign: 32 * rate - 0.5 for the
//                                               step, rounded down
//
// With `largest` the largest magnitude of the 16, a value is off by at most largest * 2^(1 - bits),
// or by 2^-126 where that is more. Signs stay, but of what becomes 0: it is +0 then, also for -0.
//
// Blocks of 2 KiB are encoded, to at most their rate; what is left behind the last one follows as
// it is. A rate below kLeastBfpRate has no bits.
constexpr int kLeastBfpRate = 11;

// Answers the bytes written: fewer than `bytes`; 0 where a value is not finite, where no whole
// block is there, and at 100 percent, where every bit is to stay. May write any of to[0, bytes).
size_t EncodeBfp(int rate_percent, const char* from, size_t bytes, char* to);

// False: no encoder wrote that. `past_cache`: what is decoded is not read soon.
bool DecodeBfp(int rate_percent, const char* from, size_t encoded_bytes, char* to, size_t bytes,
               bool past_cache);

}  // namespace tfswap

#endif  // TFSWAP_CC_CODECS_BFP_H_
