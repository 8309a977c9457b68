// The loops of BfpKernels for registers of any width: included by bfp_kernels_<path>.cc, which says
// before what TFSWAP_BFP_TARGET is (the instructions), kRegisterBytes, StorePastCache(to, from) and
// EndPastCache().
//
// All arithmetic is exact but for the one addition that rounds, to nearest and even: so results do
// not depend on the instructions, nor on whether the processor flushes small numbers to zero.

#include <cstring>
#include <utility>

#include "codecs/bfp_kernels.h"

namespace tfswap {
namespace {

constexpr int kLanes = kRegisterBytes / 4;
constexpr int kRegisters = kBfpRowBytes / kRegisterBytes;  // of a row

using Words = int32_t __attribute__((vector_size(kRegisterBytes)));
using Bits = uint32_t __attribute__((vector_size(kRegisterBytes)));
using Floats = float __attribute__((vector_size(kRegisterBytes)));

constexpr int kExponentAt = 23;
constexpr size_t kAheadBytes = 512;

// What numbers of so many bits have in common. They are kept with `centre` added, which as a float
// is so large that the sum's last bit is one step.
struct Numbers {
  explicit Numbers(int bits)
      : least(kBase + 1), most(kBase + (1 << bits) - 1), centre(kBase + (1 << (bits - 1))) {}

  static constexpr int32_t kBase = 0x4B000000;  // 2^23
  const int32_t least, most, centre;
};

TFSWAP_BFP_TARGET inline Words All(int32_t word) { return Words{} + word; }

TFSWAP_BFP_TARGET inline Words Most(Words a, Words b) { return a > b ? a : b; }

template <int kBy, int... kLane>
TFSWAP_BFP_TARGET inline Words Rotated(Words words, std::integer_sequence<int, kLane...>) {
  return __builtin_shufflevector(words, words, (kLane + kBy) % kLanes...);
}

// In every lane the largest of all lanes.
template <int kBy = kLanes / 2>
TFSWAP_BFP_TARGET inline Words MostOfLanes(Words words) {
  const Words most = Most(words, Rotated<kBy>(words, std::make_integer_sequence<int, kLanes>()));
  if constexpr (kBy == 1) {
    return most;
  } else {
    return MostOfLanes<kBy / 2>(most);
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
  const Floats centre = reinterpret_cast<Floats>(All(numbers.centre));
  Words most_of_all = {};
  for (size_t block = 0; block < blocks; ++block) {
    char* const steps = to;
    to += kBfpRows;
    Bits packed[kRegisters] = {};
    int used = 0;
    for (size_t row = 0; row < kBfpRows; ++row, from += kBfpRowBytes) {
      Words words[kRegisters], most = {};
      for (int i = 0; i < kRegisters; ++i) {
        words[i] = Load<Words>(from + i * kRegisterBytes);
        most = Most(most, words[i] & 0x7FFFFFFF);
      }
      most = MostOfLanes(most);
      most_of_all = Most(most_of_all, most);
      const Words step = Most((most & 0x7F800000) - ((bits - 2) << kExponentAt),
                              All(kBfpLeastStep << kExponentAt));
      const Floats steps_of_one = reinterpret_cast<Floats>((254 << kExponentAt) - step);
      steps[row] = static_cast<char>(step[0] >> kExponentAt);
      Bits number[kRegisters];
      for (int i = 0; i < kRegisters; ++i) {
        const Words rounded =
            reinterpret_cast<Words>(reinterpret_cast<Floats>(words[i]) * steps_of_one + centre);
        const Words no_less = Most(rounded, All(numbers.least));
        const Words symmetric = no_less < numbers.most ? no_less : All(numbers.most);
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
  return most_of_all[0] < 0x7F800000;
}

template <bool kPastCache>
TFSWAP_BFP_TARGET bool DecodeBlocks(const char* from, size_t blocks, int bits, char* to) {
  const Numbers numbers(bits);
  const Floats centre = reinterpret_cast<Floats>(All(numbers.centre));
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
      valid &= exponent >= kBfpLeastStep && exponent <= kBfpMostStep;
      const Floats step = reinterpret_cast<Floats>(All(int32_t{exponent} << kExponentAt));
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
