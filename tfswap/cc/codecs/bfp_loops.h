// The loops of BfpKernels for registers of any width. Included by bfp_kernels_<path>.cc, which must
// define TFSWAP_BFP_TARGET (the instruction set), kRegisterBytes, StorePastCache(to, from) and
// EndPastCache() first.
//
// All arithmetic is exact except for one addition, which rounds to nearest even, so results depend
// neither on the instruction set nor on flushing subnormals to zero.

#include <cstring>
#include <utility>

#include "codecs/bfp_kernels.h"

namespace tfswap {
namespace {

constexpr int kLanes = kRegisterBytes / 4;
constexpr int kRegisters = kBfpRowBytes / kRegisterBytes;  // per row

using Words = int32_t __attribute__((vector_size(kRegisterBytes)));
using Bits = uint32_t __attribute__((vector_size(kRegisterBytes)));
using Floats = float __attribute__((vector_size(kRegisterBytes)));

constexpr int kExponentAt = 23;
constexpr size_t kAheadBytes = 512;

// Constants for integers of `bits` bits. They are computed with `centre` added, a float so large
// that the last bit of the sum is one step.
struct Numbers {
  explicit Numbers(int bits)
      : min(kBase + 1), max(kBase + (1 << bits) - 1), centre(kBase + (1 << (bits - 1))) {}

  static constexpr int32_t kBase = 0x4B000000;  // 2^23
  const int32_t min, max, centre;
};

TFSWAP_BFP_TARGET inline Words Broadcast(int32_t word) { return Words{} + word; }

TFSWAP_BFP_TARGET inline Words Max(Words a, Words b) { return a > b ? a : b; }

template <int kBy, int... kLane>
TFSWAP_BFP_TARGET inline Words Rotate(Words words, std::integer_sequence<int, kLane...>) {
#if __has_builtin(__builtin_shufflevector)
  return __builtin_shufflevector(words, words, (kLane + kBy) % kLanes...);
#else  // g++ 11
  return __builtin_shuffle(words, Words{(kLane + kBy) % kLanes...});
#endif
}

// Return the maximum of all lanes, in every lane.
template <int kBy = kLanes / 2>
TFSWAP_BFP_TARGET inline Words MaxOfLanes(Words words) {
  const Words most = Max(words, Rotate<kBy>(words, std::make_integer_sequence<int, kLanes>()));
  if constexpr (kBy == 1) {
    return most;
  } else {
    return MaxOfLanes<kBy / 2>(most);
  }
}

template <typename Register>
TFSWAP_BFP_TARGET inline Register Load(const char* from) {
  Register loaded;
  std::memcpy(&loaded, from, sizeof(loaded));
  return loaded;
}

TFSWAP_BFP_TARGET bool EncodeBlocks(const char* from, size_t blocks, int bits, char* to) {
  const Numbers numbers(bits);
  const Floats centre = reinterpret_cast<Floats>(Broadcast(numbers.centre));
  Words max_of_all = {};
  for (size_t block = 0; block < blocks; ++block) {
    char* const steps = to;
    to += kBfpRows;
    Bits packed[kRegisters] = {};
    int used = 0;
    for (size_t row = 0; row < kBfpRows; ++row, from += kBfpRowBytes) {
      Words words[kRegisters], most = {};
      for (int i = 0; i < kRegisters; ++i) {
        words[i] = Load<Words>(from + i * kRegisterBytes);
        most = Max(most, words[i] & 0x7FFFFFFF);
      }
      most = MaxOfLanes(most);
      max_of_all = Max(max_of_all, most);
      const Words step = Max((most & 0x7F800000) - ((bits - 2) << kExponentAt),
                             Broadcast(kBfpMinStep << kExponentAt));
      const Floats steps_of_one = reinterpret_cast<Floats>((254 << kExponentAt) - step);
      steps[row] = static_cast<char>(step[0] >> kExponentAt);
      Bits number[kRegisters];
      for (int i = 0; i < kRegisters; ++i) {
        const Words rounded =
            reinterpret_cast<Words>(reinterpret_cast<Floats>(words[i]) * steps_of_one + centre);
        const Words no_less = Max(rounded, Broadcast(numbers.min));
        const Words symmetric = no_less < numbers.max ? no_less : Broadcast(numbers.max);
        number[i] = reinterpret_cast<Bits>(symmetric ^ Numbers::kBase);
        packed[i] |= number[i] << used;
      }
      used += bits;
      if (used < 32) continue;
      used -= 32;
      std::memcpy(to, packed, kBfpRowBytes);
      to += kBfpRowBytes;
      for (int i = 0; i < kRegisters; ++i) packed[i] = number[i] >> (bits - used);
    }
  }
  return max_of_all[0] < 0x7F800000;
}

template <bool kPastCache>
TFSWAP_BFP_TARGET bool DecodeBlocks(const char* from, size_t blocks, int bits, char* to) {
  const Numbers numbers(bits);
  const Floats centre = reinterpret_cast<Floats>(Broadcast(numbers.centre));
  const uint32_t mask = (uint32_t{1} << bits) - 1;
  bool valid = true;
  for (size_t block = 0; block < blocks; ++block) {
    const char* const steps = from;
    from += kBfpRows;
    Bits packed[kRegisters] = {};
    int left = 0;
    for (size_t row = 0; row < kBfpRows; ++row, to += kBfpRowBytes) {
      Bits number[kRegisters];
      for (int i = 0; i < kRegisters; ++i) number[i] = packed[i];
      if (left < bits) {
        for (int i = 0; i < kRegisters; ++i) {
          const Bits next = Load<Bits>(from + i * kRegisterBytes);
          number[i] |= next << left;
          packed[i] = next >> (bits - left);
        }
        __builtin_prefetch(from + kAheadBytes);
        from += kBfpRowBytes;
        left += 32 - bits;
      } else {
        for (int i = 0; i < kRegisters; ++i) packed[i] >>= bits;
        left -= bits;
      }
      const auto exponent = static_cast<unsigned char>(steps[row]);
      valid &= exponent >= kBfpMinStep && exponent <= kBfpMaxStep;
      const Floats step = reinterpret_cast<Floats>(Broadcast(int32_t{exponent} << kExponentAt));
      for (int i = 0; i < kRegisters; ++i) {
        const Bits sum = (number[i] & mask) | uint32_t{Numbers::kBase};
        const Floats value = (reinterpret_cast<Floats>(sum) - centre) * step;
        char* const out = to + i * kRegisterBytes;
        if constexpr (kPastCache) {
          StorePastCache(out, &value);
        } else {
          std::memcpy(out, &value, sizeof(value));
        }
      }
    }
  }
  if constexpr (kPastCache) EndPastCache();
  return valid;
}

bool Decode(const char* from, size_t blocks, int bits, char* to, bool past_cache) {
  const bool aligned = reinterpret_cast<uintptr_t>(to) % kRegisterBytes == 0;
  const auto decode = past_cache && aligned ? &DecodeBlocks<true> : &DecodeBlocks<false>;
  return decode(from, blocks, bits, to);
}

constexpr BfpKernels kBfpKernels = {&EncodeBlocks, &Decode};

}  // namespace
}  // namespace tfswap
