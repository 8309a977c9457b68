#include "codecs/word_kernels.h"

#if defined(__x86_64__)

#include <immintrin.h>

#include <cstring>

#define TFSWAP_AVX512 __attribute__((target("avx512f,avx512bw,popcnt")))
#define TFSWAP_AVX512_VBMI2 __attribute__((target("avx512f,avx512bw,avx512vbmi2,popcnt")))

namespace tfswap {
namespace {

// Compress in registers: the instruction that compresses to memory takes over a hundred cycles on
// AMD processors.

constexpr size_t kAheadBytes = 512;  // fastest by measurement, for one core and for two

inline uint32_t LoadBitmap(const char* from) {
  uint32_t bitmap;
  std::memcpy(&bitmap, from, sizeof(bitmap));
  return bitmap;
}

inline bool Fits(const char* cursor, const char* end, size_t bytes) {
  return static_cast<size_t>(end - cursor) >= bytes;
}

TFSWAP_AVX512 inline uint32_t NonZero4(__m512i low, __m512i high) {
  const uint32_t bitmap = _mm512_test_epi32_mask(low, low);
  return bitmap | static_cast<uint32_t>(_mm512_test_epi32_mask(high, high)) << 16;
}

TFSWAP_AVX512 inline char* Pack4(__m512i low, __m512i high, uint32_t bitmap, char* to) {
  _mm512_storeu_si512(to, _mm512_maskz_compress_epi32(static_cast<__mmask16>(bitmap), low));
  to += 4 * __builtin_popcount(bitmap & 0xFFFF);
  _mm512_storeu_si512(to, _mm512_maskz_compress_epi32(static_cast<__mmask16>(bitmap >> 16), high));
  return to + 4 * __builtin_popcount(bitmap >> 16);
}

TFSWAP_AVX512 size_t MarkWords4(const char* from, size_t groups, char* bits) {
  size_t marked = 0;
  for (size_t group = 0; group < groups; ++group, from += 128, bits += kBitmapBytes) {
    const uint32_t bitmap = NonZero4(_mm512_loadu_si512(from), _mm512_loadu_si512(from + 64));
    std::memcpy(bits, &bitmap, kBitmapBytes);
    marked += static_cast<size_t>(__builtin_popcount(bitmap));
  }
  return marked;
}

TFSWAP_AVX512 size_t MarkAndPackWords4(const char* from, size_t groups, char* bits, char** to,
                                       const char* to_end) {
  size_t group = 0;
  char* out = *to;
  for (; group < groups && Fits(out, to_end, 128); ++group, from += 128, bits += kBitmapBytes) {
    _mm_prefetch(from + kAheadBytes, _MM_HINT_T0);
    _mm_prefetch(from + kAheadBytes + 64, _MM_HINT_T0);
    const __m512i low = _mm512_loadu_si512(from);
    const __m512i high = _mm512_loadu_si512(from + 64);
    const uint32_t bitmap = NonZero4(low, high);
    std::memcpy(bits, &bitmap, kBitmapBytes);
    out = Pack4(low, high, bitmap, out);
  }
  *to = out;
  return group;
}

TFSWAP_AVX512 size_t PackWords4(const char* from, size_t groups, const char* bits, char** to,
                                const char* to_end) {
  size_t group = 0;
  char* out = *to;
  for (; group < groups && Fits(out, to_end, 128); ++group, from += 128, bits += kBitmapBytes) {
    out = Pack4(_mm512_loadu_si512(from), _mm512_loadu_si512(from + 64), LoadBitmap(bits), out);
  }
  *to = out;
  return group;
}

template <bool kPastCache>
TFSWAP_AVX512 size_t UnpackWords4(const char** values, const char* values_end, size_t groups,
                                  const char* bits, char* to) {
  size_t group = 0;
  const char* value = *values;
  for (; group < groups && Fits(value, values_end, 128); ++group, to += 128, bits += kBitmapBytes) {
    _mm_prefetch(value + kAheadBytes, _MM_HINT_T0);
    const uint32_t bitmap = LoadBitmap(bits);
    const __m512i low =
        _mm512_maskz_expand_epi32(static_cast<__mmask16>(bitmap), _mm512_loadu_si512(value));
    value += 4 * __builtin_popcount(bitmap & 0xFFFF);
    const __m512i high =
        _mm512_maskz_expand_epi32(static_cast<__mmask16>(bitmap >> 16), _mm512_loadu_si512(value));
    value += 4 * __builtin_popcount(bitmap >> 16);
    if constexpr (kPastCache) {
      _mm512_stream_si512(reinterpret_cast<__m512i*>(to), low);
      _mm512_stream_si512(reinterpret_cast<__m512i*>(to + 64), high);
    } else {
      _mm512_storeu_si512(to, low);
      _mm512_storeu_si512(to + 64, high);
    }
  }
  if constexpr (kPastCache) _mm_sfence();
  *values = value;
  return group;
}

TFSWAP_AVX512_VBMI2 size_t MarkWords2(const char* from, size_t groups, char* bits) {
  size_t marked = 0;
  for (size_t group = 0; group < groups; ++group, from += 64, bits += kBitmapBytes) {
    const __m512i words = _mm512_loadu_si512(from);
    const uint32_t bitmap = _mm512_test_epi16_mask(words, words);
    std::memcpy(bits, &bitmap, kBitmapBytes);
    marked += static_cast<size_t>(__builtin_popcount(bitmap));
  }
  return marked;
}

TFSWAP_AVX512_VBMI2 size_t MarkAndPackWords2(const char* from, size_t groups, char* bits, char** to,
                                             const char* to_end) {
  size_t group = 0;
  char* out = *to;
  for (; group < groups && Fits(out, to_end, 64); ++group, from += 64, bits += kBitmapBytes) {
    _mm_prefetch(from + kAheadBytes, _MM_HINT_T0);
    const __m512i words = _mm512_loadu_si512(from);
    const uint32_t bitmap = _mm512_test_epi16_mask(words, words);
    std::memcpy(bits, &bitmap, kBitmapBytes);
    _mm512_storeu_si512(out, _mm512_maskz_compress_epi16(bitmap, words));
    out += 2 * __builtin_popcount(bitmap);
  }
  *to = out;
  return group;
}

TFSWAP_AVX512_VBMI2 size_t PackWords2(const char* from, size_t groups, const char* bits, char** to,
                                      const char* to_end) {
  size_t group = 0;
  char* out = *to;
  for (; group < groups && Fits(out, to_end, 64); ++group, from += 64, bits += kBitmapBytes) {
    const uint32_t bitmap = LoadBitmap(bits);
    _mm512_storeu_si512(out, _mm512_maskz_compress_epi16(bitmap, _mm512_loadu_si512(from)));
    out += 2 * __builtin_popcount(bitmap);
  }
  *to = out;
  return group;
}

template <bool kPastCache>
TFSWAP_AVX512_VBMI2 size_t UnpackWords2(const char** values, const char* values_end, size_t groups,
                                        const char* bits, char* to) {
  size_t group = 0;
  const char* value = *values;
  for (; group < groups && Fits(value, values_end, 64); ++group, to += 64, bits += kBitmapBytes) {
    _mm_prefetch(value + kAheadBytes, _MM_HINT_T0);
    const uint32_t bitmap = LoadBitmap(bits);
    const __m512i words = _mm512_maskz_expand_epi16(bitmap, _mm512_loadu_si512(value));
    value += 2 * __builtin_popcount(bitmap);
    if constexpr (kPastCache) {
      _mm512_stream_si512(reinterpret_cast<__m512i*>(to), words);
    } else {
      _mm512_storeu_si512(to, words);
    }
  }
  if constexpr (kPastCache) _mm_sfence();
  *values = value;
  return group;
}

template <decltype(&UnpackWords4<true>) kPast, decltype(&UnpackWords4<true>) kThrough>
size_t Unpack(const char** values, const char* values_end, size_t groups, const char* bits,
              char* to, bool past_cache) {
  const bool aligned = reinterpret_cast<uintptr_t>(to) % 64 == 0;
  return (past_cache && aligned ? kPast : kThrough)(values, values_end, groups, bits, to);
}

TFSWAP_AVX512_VBMI2 size_t Positions(const char* bits, size_t groups, uint16_t first, char** to,
                                     const char* to_end) {
  alignas(64) uint16_t counting[kGroupWords];
  for (size_t i = 0; i < kGroupWords; ++i) counting[i] = static_cast<uint16_t>(first + i);
  __m512i places = _mm512_load_si512(counting);
  size_t group = 0;
  char* out = *to;
  for (; group < groups && Fits(out, to_end, 64); ++group, bits += kBitmapBytes) {
    const uint32_t bitmap = LoadBitmap(bits);
    _mm512_storeu_si512(out, _mm512_maskz_compress_epi16(bitmap, places));
    out += 2 * __builtin_popcount(bitmap);
    places = _mm512_add_epi16(places, _mm512_set1_epi16(kGroupWords));
  }
  *to = out;
  return group;
}

TFSWAP_AVX512 size_t CountBits(const char* bits, size_t groups) {
  size_t count = 0;
  for (size_t group = 0; group < groups; ++group, bits += kBitmapBytes) {
    count += static_cast<size_t>(__builtin_popcount(LoadBitmap(bits)));
  }
  return count;
}

TFSWAP_AVX512 size_t CountZeros4(const char* from, size_t words) {
  size_t zeros = 0;
  for (; words >= 16; words -= 16, from += 64) {
    const __m512i v = _mm512_loadu_si512(from);
    zeros += static_cast<size_t>(__builtin_popcount(_mm512_testn_epi32_mask(v, v)));
  }
  return zeros + PortableKernels(4)->count_zeros(from, words);
}

TFSWAP_AVX512 size_t CountZeros2(const char* from, size_t words) {
  size_t zeros = 0;
  for (; words >= 32; words -= 32, from += 64) {
    const __m512i v = _mm512_loadu_si512(from);
    zeros += static_cast<size_t>(__builtin_popcount(_mm512_testn_epi16_mask(v, v)));
  }
  return zeros + PortableKernels(2)->count_zeros(from, words);
}

bool Supports4() {
  static const bool supports = __builtin_cpu_supports("avx512f") &&
                               __builtin_cpu_supports("avx512bw") &&
                               __builtin_cpu_supports("popcnt") && Avx2Kernels(4) != nullptr;
  return supports;
}

bool Supports2() {
  static const bool supports = Supports4() && __builtin_cpu_supports("avx512vbmi2");
  return supports;
}

}  // namespace

const WordKernels* Avx512Kernels(int element_bytes) {
  static const WordKernels words4 = {&MarkWords4,
                                     &MarkAndPackWords4,
                                     &PackWords4,
                                     &Unpack<&UnpackWords4<true>, &UnpackWords4<false>>,
                                     Supports2()   ? &Positions
                                     : Supports4() ? Avx2Kernels(4)->positions
                                                   : nullptr,
                                     &CountBits,
                                     &CountZeros4};
  static const WordKernels words2 = {
      &MarkWords2, &MarkAndPackWords2,
      &PackWords2, &Unpack<&UnpackWords2<true>, &UnpackWords2<false>>,
      &Positions,  &CountBits,
      &CountZeros2};
  if (element_bytes == 2) return Supports2() ? &words2 : nullptr;
  return Supports4() ? &words4 : nullptr;
}

}  // namespace tfswap

#else

const tfswap::WordKernels* tfswap::Avx512Kernels(int) { return nullptr; }

#endif
