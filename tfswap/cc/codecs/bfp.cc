#include "codecs/bfp.h"

#include <algorithm>
#include <cstring>

#include "codecs/codec_path.h"

namespace tfswap {
namespace {

// The bits per value at a rate: a share of 32 bits, less the value's share of the exponent.
constexpr int BitsAt(int rate_percent) {
  return std::min((32 * rate_percent - 50) / 100, kBfpMaxBits);
}
static_assert(BitsAt(kMinBfpRate) == kBfpMinBits && BitsAt(kMinBfpRate - 1) < kBfpMinBits,
              "kMinBfpRate is the rate of kBfpMinBits");

// Return the whole blocks to encode; 0 if this codec does not apply.
size_t BlocksOf(int rate_percent, size_t bytes) {
  return rate_percent < kMinBfpRate || rate_percent >= 100 ? 0 : bytes / kBfpBlockBytes;
}

}  // namespace

size_t EncodeBfp(int rate_percent, const char* from, size_t bytes, char* to) {
  const size_t blocks = BlocksOf(rate_percent, bytes);
  const int bits = BitsAt(rate_percent);
  if (blocks == 0 || !KernelsForBfp().encode(from, blocks, bits, to)) return 0;
  const size_t block_bytes = blocks * kBfpBlockBytes;
  const size_t encoded_bytes = blocks * BfpEncodedBytes(bits);
  std::memcpy(to + encoded_bytes, from + block_bytes, bytes - block_bytes);
  return encoded_bytes + bytes - block_bytes;
}

bool DecodeBfp(int rate_percent, const char* from, size_t encoded_bytes, char* to, size_t bytes,
               bool past_cache) {
  const size_t blocks = BlocksOf(rate_percent, bytes);
  const int bits = BitsAt(rate_percent);
  const size_t block_bytes = blocks * kBfpBlockBytes;
  const size_t left_bytes = bytes - block_bytes;
  if (blocks == 0 || encoded_bytes != blocks * BfpEncodedBytes(bits) + left_bytes) return false;
  if (!KernelsForBfp().decode(from, blocks, bits, to, past_cache)) return false;
  std::memcpy(to + block_bytes, from + encoded_bytes - left_bytes, left_bytes);
  return true;
}

}  // namespace tfswap
