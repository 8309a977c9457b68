#include <cstring>

#include "codecs/word_kernels.h"

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "bitmaps are read as words of any width");

namespace tfswap {
namespace {

template <typename T>
T Load(const char* from) {
  T value;
  std::memcpy(&value, from, sizeof(T));
  return value;
}

// Return 1, or 0 for zero. Branch-free, because compilers emit an unpredictable branch for the
// comparison.
template <typename Word>
uint32_t IsKept(Word word) {
  const auto wide = static_cast<uint32_t>(word);
  return (wide | (0 - wide)) >> 31;
}

template <typename Word>
size_t Mark(const char* from, size_t groups, char* bits) {
  size_t marked = 0;
  for (size_t group = 0; group < groups; ++group) {
    uint32_t bitmap = 0;
    for (size_t i = 0; i < kGroupWords; ++i, from += sizeof(Word)) {
      bitmap |= IsKept(Load<Word>(from)) << i;
    }
    marked += static_cast<size_t>(__builtin_popcount(bitmap));
    std::memcpy(bits + group * kBitmapBytes, &bitmap, kBitmapBytes);
  }
  return marked;
}

// Branch-free: each word is written where the next kept one belongs.
template <typename Word>
size_t Pack(const char* from, size_t groups, const char* bits, char** to, const char* to_end) {
  constexpr size_t kGroupBytes = kGroupWords * sizeof(Word);
  size_t group = 0;
  for (; group < groups && static_cast<size_t>(to_end - *to) >= kGroupBytes; ++group) {
    const uint32_t bitmap = Load<uint32_t>(bits + group * kBitmapBytes);
    char* out = *to;
    for (size_t i = 0; i < kGroupWords; ++i, from += sizeof(Word)) {
      std::memcpy(out, from, sizeof(Word));
      out += (bitmap >> i & 1) * sizeof(Word);
    }
    *to = out;
  }
  return group;
}

template <typename Word>
size_t MarkAndPack(const char* from, size_t groups, char* bits, char** to, const char* to_end) {
  constexpr size_t kGroupBytes = kGroupWords * sizeof(Word);
  size_t group = 0;
  for (; group < groups && static_cast<size_t>(to_end - *to) >= kGroupBytes; ++group) {
    uint32_t bitmap = 0;
    char* out = *to;
    for (size_t i = 0; i < kGroupWords; ++i, from += sizeof(Word)) {
      const Word word = Load<Word>(from);
      const uint32_t kept = IsKept(word);
      std::memcpy(out, &word, sizeof(Word));
      out += kept * sizeof(Word);
      bitmap |= kept << i;
    }
    *to = out;
    std::memcpy(bits + group * kBitmapBytes, &bitmap, kBitmapBytes);
  }
  return group;
}

template <typename Word>
size_t Unpack(const char** values, const char* values_end, size_t groups, const char* bits,
              char* to, bool) {
  constexpr size_t kGroupBytes = kGroupWords * sizeof(Word);
  size_t group = 0;
  for (; group < groups && static_cast<size_t>(values_end - *values) >= kGroupBytes; ++group) {
    const uint32_t bitmap = Load<uint32_t>(bits + group * kBitmapBytes);
    const char* value = *values;
    for (size_t i = 0; i < kGroupWords; ++i, to += sizeof(Word)) {
      const Word kept = bitmap >> i & 1;
      const Word word = Load<Word>(value) & static_cast<Word>(-kept);
      std::memcpy(to, &word, sizeof(Word));
      value += kept * sizeof(Word);
    }
    *values = value;
  }
  return group;
}

size_t Positions(const char* bits, size_t groups, uint16_t first, char** to, const char* to_end) {
  size_t group = 0;
  for (; group < groups && to_end - *to >= static_cast<int64_t>(2 * kGroupWords); ++group) {
    uint32_t bitmap = Load<uint32_t>(bits + group * kBitmapBytes);
    for (; bitmap != 0; bitmap &= bitmap - 1, *to += 2) {
      const auto position = static_cast<uint16_t>(first + group * kGroupWords +
                                                  static_cast<size_t>(__builtin_ctz(bitmap)));
      std::memcpy(*to, &position, 2);
    }
  }
  return group;
}

size_t CountBits(const char* bits, size_t groups) {
  size_t count = 0;
  for (size_t group = 0; group < groups; ++group) {
    count += static_cast<size_t>(__builtin_popcount(Load<uint32_t>(bits + group * kBitmapBytes)));
  }
  return count;
}

template <typename Word>
size_t CountZeros(const char* from, size_t words) {
  size_t zeros = 0;
  for (size_t i = 0; i < words; ++i) zeros += Load<Word>(from + i * sizeof(Word)) == 0;
  return zeros;
}

template <typename Word>
constexpr WordKernels kKernels = {&Mark<Word>, &MarkAndPack<Word>, &Pack<Word>,      &Unpack<Word>,
                                  &Positions,  &CountBits,         &CountZeros<Word>};

}  // namespace

const WordKernels* PortableKernels(int element_bytes) {
  return element_bytes == 2 ? &kKernels<uint16_t> : &kKernels<uint32_t>;
}

}  // namespace tfswap
