#include "codecs/word_kernels.h"

#if defined(__x86_64__)

#include <immintrin.h>

#include <array>
#include <cstring>

#define TFSWAP_AVX2 __attribute__((target("avx2,popcnt")))

namespace tfswap {
namespace {

constexpr size_t kAheadBytes = 512;

// By 8 bits of a bitmap: for each lane of the packed words, the index of its word; for each lane of
// the unpacked words, the index of its value, or -128 for zero.
using Lanes = std::array<std::array<int8_t, 8>, 256>;

constexpr Lanes MakePackLanes() {
  Lanes lanes{};
  for (int bits = 0; bits < 256; ++bits) {
    int kept = 0;
    for (int word = 0; word < 8; ++word) {
      if (bits >> word & 1) lanes[bits][kept++] = static_cast<int8_t>(word);
    }
  }
  return lanes;
}

constexpr Lanes MakeUnpackLanes() {
  Lanes lanes{};
  for (int bits = 0; bits < 256; ++bits) {
    int kept = 0;
    for (int word = 0; word < 8; ++word) {
      lanes[bits][word] = (bits >> word & 1) ? static_cast<int8_t>(kept++) : int8_t{-128};
    }
  }
  return lanes;
}

// The same for the bytes of 2-byte words.
using ByteLanes = std::array<std::array<int8_t, 16>, 256>;

constexpr ByteLanes ToBytes(const Lanes& lanes) {
  ByteLanes bytes{};
  for (int bits = 0; bits < 256; ++bits) {
    for (int lane = 0; lane < 8; ++lane) {
      const int word = lanes[bits][lane];
      bytes[bits][2 * lane] = static_cast<int8_t>(word < 0 ? -128 : 2 * word);
      bytes[bits][2 * lane + 1] = static_cast<int8_t>(word < 0 ? -128 : 2 * word + 1);
    }
  }
  return bytes;
}

alignas(64) constexpr Lanes kPackLanes = MakePackLanes();
alignas(64) constexpr Lanes kUnpackLanes = MakeUnpackLanes();
alignas(64) constexpr ByteLanes kPackBytes = ToBytes(kPackLanes);
alignas(64) constexpr ByteLanes kUnpackBytes = ToBytes(kUnpackLanes);

inline uint32_t LoadBitmap(const char* from) {
  uint32_t bitmap;
  std::memcpy(&bitmap, from, sizeof(bitmap));
  return bitmap;
}

inline bool Fits(const char* cursor, const char* end, size_t bytes) {
  return static_cast<size_t>(end - cursor) >= bytes;
}

TFSWAP_AVX2 inline __m256i Load256(const char* from) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
}

TFSWAP_AVX2 inline __m128i Load128(const void* from) {
  return _mm_loadu_si128(static_cast<const __m128i*>(from));
}

TFSWAP_AVX2 inline __m256i Lanes32(const std::array<int8_t, 8>& lanes) {
  return _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(lanes.data())));
}

TFSWAP_AVX2 inline uint32_t NonZero4(const char* from) {
  uint32_t zero = 0;
  for (int i = 0; i < 4; ++i) {
    const __m256i is_zero = _mm256_cmpeq_epi32(Load256(from + 32 * i), _mm256_setzero_si256());
    zero |= static_cast<uint32_t>(_mm256_movemask_ps(_mm256_castsi256_ps(is_zero))) << 8 * i;
  }
  return ~zero;
}

TFSWAP_AVX2 inline uint32_t NonZero2(const char* from) {
  const __m256i low = _mm256_cmpeq_epi16(Load256(from), _mm256_setzero_si256());
  const __m256i high = _mm256_cmpeq_epi16(Load256(from + 32), _mm256_setzero_si256());
  const __m256i in_order = _mm256_permute4x64_epi64(_mm256_packs_epi16(low, high), 0xD8);
  return ~static_cast<uint32_t>(_mm256_movemask_epi8(in_order));
}

TFSWAP_AVX2 inline char* PackGroup4(const char* from, uint32_t bitmap, char* to) {
  for (int i = 0; i < 4; ++i) {
    const uint32_t bits = bitmap >> 8 * i & 0xFF;
    const __m256i packed =
        _mm256_permutevar8x32_epi32(Load256(from + 32 * i), Lanes32(kPackLanes[bits]));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), packed);
    to += 4 * __builtin_popcount(bits);
  }
  return to;
}

TFSWAP_AVX2 inline char* PackGroup2(const char* from, uint32_t bitmap, char* to) {
  for (int i = 0; i < 4; ++i) {
    const uint32_t bits = bitmap >> 8 * i & 0xFF;
    const __m128i packed =
        _mm_shuffle_epi8(Load128(from + 16 * i), Load128(kPackBytes[bits].data()));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), packed);
    to += 2 * __builtin_popcount(bits);
  }
  return to;
}

template <int kWordBytes>
TFSWAP_AVX2 inline uint32_t NonZero(const char* from) {
  if constexpr (kWordBytes == 4) {
    return NonZero4(from);
  } else {
    return NonZero2(from);
  }
}

template <int kWordBytes>
TFSWAP_AVX2 inline char* PackGroup(const char* from, uint32_t bitmap, char* to) {
  if constexpr (kWordBytes == 4) {
    return PackGroup4(from, bitmap, to);
  } else {
    return PackGroup2(from, bitmap, to);
  }
}

template <int kWordBytes>
TFSWAP_AVX2 size_t Mark(const char* from, size_t groups, char* bits) {
  constexpr size_t kGroupBytes = kGroupWords * kWordBytes;
  size_t marked = 0;
  for (size_t group = 0; group < groups; ++group, from += kGroupBytes, bits += kBitmapBytes) {
    const uint32_t bitmap = NonZero<kWordBytes>(from);
    std::memcpy(bits, &bitmap, kBitmapBytes);
    marked += static_cast<size_t>(__builtin_popcount(bitmap));
  }
  return marked;
}

template <int kWordBytes>
TFSWAP_AVX2 size_t MarkAndPack(const char* from, size_t groups, char* bits, char** to,
                               const char* to_end) {
  constexpr size_t kGroupBytes = kGroupWords * kWordBytes;
  size_t group = 0;
  char* out = *to;
  for (; group < groups && Fits(out, to_end, kGroupBytes);
       ++group, from += kGroupBytes, bits += kBitmapBytes) {
    for (size_t line = 0; line < kGroupBytes; line += 64) {
      _mm_prefetch(from + kAheadBytes + line, _MM_HINT_T0);
    }
    const uint32_t bitmap = NonZero<kWordBytes>(from);
    std::memcpy(bits, &bitmap, kBitmapBytes);
    out = PackGroup<kWordBytes>(from, bitmap, out);
  }
  *to = out;
  return group;
}

template <int kWordBytes>
TFSWAP_AVX2 size_t Pack(const char* from, size_t groups, const char* bits, char** to,
                        const char* to_end) {
  constexpr size_t kGroupBytes = kGroupWords * kWordBytes;
  size_t group = 0;
  char* out = *to;
  for (; group < groups && Fits(out, to_end, kGroupBytes);
       ++group, from += kGroupBytes, bits += kBitmapBytes) {
    out = PackGroup<kWordBytes>(from, LoadBitmap(bits), out);
  }
  *to = out;
  return group;
}

template <bool kPastCache>
TFSWAP_AVX2 size_t UnpackWords4(const char** values, const char* values_end, size_t groups,
                                const char* bits, char* to) {
  size_t group = 0;
  const char* value = *values;
  for (; group < groups && Fits(value, values_end, 128); ++group, bits += kBitmapBytes) {
    _mm_prefetch(value + kAheadBytes, _MM_HINT_T0);
    const uint32_t bitmap = LoadBitmap(bits);
    for (int i = 0; i < 4; ++i, to += 32) {
      const uint32_t eight = bitmap >> 8 * i & 0xFF;
      const __m256i lanes = Lanes32(kUnpackLanes[eight]);
      const __m256i spread = _mm256_permutevar8x32_epi32(Load256(value), lanes);
      const __m256i words = _mm256_andnot_si256(_mm256_srai_epi32(lanes, 31), spread);
      if constexpr (kPastCache) {
        _mm256_stream_si256(reinterpret_cast<__m256i*>(to), words);
      } else {
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), words);
      }
      value += 4 * __builtin_popcount(eight);
    }
  }
  if constexpr (kPastCache) _mm_sfence();
  *values = value;
  return group;
}

template <bool kPastCache>
TFSWAP_AVX2 size_t UnpackWords2(const char** values, const char* values_end, size_t groups,
                                const char* bits, char* to) {
  size_t group = 0;
  const char* value = *values;
  for (; group < groups && Fits(value, values_end, 64); ++group, bits += kBitmapBytes) {
    _mm_prefetch(value + kAheadBytes, _MM_HINT_T0);
    const uint32_t bitmap = LoadBitmap(bits);
    for (int i = 0; i < 4; ++i, to += 16) {
      const uint32_t eight = bitmap >> 8 * i & 0xFF;
      const __m128i words = _mm_shuffle_epi8(Load128(value), Load128(kUnpackBytes[eight].data()));
      if constexpr (kPastCache) {
        _mm_stream_si128(reinterpret_cast<__m128i*>(to), words);
      } else {
        _mm_storeu_si128(reinterpret_cast<__m128i*>(to), words);
      }
      value += 2 * __builtin_popcount(eight);
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

TFSWAP_AVX2 size_t Positions(const char* bits, size_t groups, uint16_t first, char** to,
                             const char* to_end) {
  __m128i places = _mm_add_epi16(_mm_set1_epi16(static_cast<int16_t>(first)),
                                 _mm_setr_epi16(0, 1, 2, 3, 4, 5, 6, 7));
  size_t group = 0;
  char* out = *to;
  for (; group < groups && Fits(out, to_end, 2 * kGroupWords); ++group, bits += kBitmapBytes) {
    const uint32_t bitmap = LoadBitmap(bits);
    for (int i = 0; i < 4; ++i) {
      const uint32_t eight = bitmap >> 8 * i & 0xFF;
      const __m128i packed = _mm_shuffle_epi8(places, Load128(kPackBytes[eight].data()));
      _mm_storeu_si128(reinterpret_cast<__m128i*>(out), packed);
      out += 2 * __builtin_popcount(eight);
      places = _mm_add_epi16(places, _mm_set1_epi16(8));
    }
  }
  *to = out;
  return group;
}

TFSWAP_AVX2 size_t CountBits(const char* bits, size_t groups) {
  size_t count = 0;
  for (size_t group = 0; group < groups; ++group, bits += kBitmapBytes) {
    count += static_cast<size_t>(__builtin_popcount(LoadBitmap(bits)));
  }
  return count;
}

template <int kWordBytes>
TFSWAP_AVX2 size_t CountZeros(const char* from, size_t words) {
  size_t non_zero = 0;
  const size_t groups = words / kGroupWords;
  for (size_t group = 0; group < groups; ++group, from += kGroupWords * kWordBytes) {
    non_zero += static_cast<size_t>(__builtin_popcount(NonZero<kWordBytes>(from)));
  }
  return groups * kGroupWords - non_zero +
         PortableKernels(kWordBytes)->count_zeros(from, words % kGroupWords);
}

template <int kWordBytes, auto kUnpack>
constexpr WordKernels kKernels = {
    &Mark<kWordBytes>, &MarkAndPack<kWordBytes>, &Pack<kWordBytes>, kUnpack, &Positions,
    &CountBits,        &CountZeros<kWordBytes>};

}  // namespace

const WordKernels* Avx2Kernels(int element_bytes) {
  static const bool supported = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("popcnt");
  if (!supported) return nullptr;
  return element_bytes == 2 ? &kKernels<2, &Unpack<&UnpackWords2<true>, &UnpackWords2<false>>>
                            : &kKernels<4, &Unpack<&UnpackWords4<true>, &UnpackWords4<false>>>;
}

}  // namespace tfswap

#else

const tfswap::WordKernels* tfswap::Avx2Kernels(int) { return nullptr; }

#endif
