#include "core/memory/copy.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <vector>

#if defined(__SSE2__)
#include <immintrin.h>
#endif

namespace tfswap {

namespace {

// 64 lanes of 32 bits, each of which absorbs every 64th word, so that the latency of
// multiplications is hidden. Each step of a lane is a bijection, so a single changed word always
// changes the result.
constexpr size_t kLanes = 64;
constexpr size_t kStripeBytes = kLanes * sizeof(uint32_t);
constexpr uint32_t kLaneMultiplier = 0x9E3779B1u;
constexpr int kLaneShift = 15;

void UpdateLanesPortable(const char* from, size_t stripes, uint32_t* lanes) {
  for (; stripes > 0; --stripes, from += kStripeBytes) {
    uint32_t words[kLanes];
    std::memcpy(words, from, kStripeBytes);
    for (size_t i = 0; i < kLanes; ++i) {
      const uint32_t mixed = (lanes[i] ^ words[i]) * kLaneMultiplier;
      lanes[i] = mixed ^ (mixed >> kLaneShift);
    }
  }
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) void UpdateLanesAvx2(const char* from, size_t stripes,
                                                     uint32_t* lanes) {
  constexpr size_t kVectors = kStripeBytes / sizeof(__m256i);
  auto* kept = reinterpret_cast<__m256i*>(lanes);
  const __m256i multiplier = _mm256_set1_epi32(static_cast<int>(kLaneMultiplier));
  __m256i vectors[kVectors];
  for (size_t i = 0; i < kVectors; ++i) vectors[i] = _mm256_loadu_si256(kept + i);
  for (; stripes > 0; --stripes, from += kStripeBytes) {
    const auto* words = reinterpret_cast<const __m256i*>(from);
    for (size_t i = 0; i < kVectors; ++i) {
      const __m256i mixed = _mm256_mullo_epi32(
          _mm256_xor_si256(vectors[i], _mm256_loadu_si256(words + i)), multiplier);
      vectors[i] = _mm256_xor_si256(mixed, _mm256_srli_epi32(mixed, kLaneShift));
    }
  }
  for (size_t i = 0; i < kVectors; ++i) _mm256_storeu_si256(kept + i, vectors[i]);
}
#endif

void UpdateLanes(const char* from, size_t stripes, bool portable, uint32_t* lanes) {
#if defined(__x86_64__)
  static const bool has_avx2 = __builtin_cpu_supports("avx2");
  if (has_avx2 && !portable) return UpdateLanesAvx2(from, stripes, lanes);
#endif
  UpdateLanesPortable(from, stripes, lanes);
}

}  // namespace

void CopyPastCache(void* destination, const void* source, size_t bytes) {
#if defined(__SSE2__)
  char* to = static_cast<char*>(destination);
  const char* from = static_cast<const char*>(source);
  const size_t head = (64 - reinterpret_cast<uintptr_t>(to) % 64) % 64;
  if (bytes < 4096 + head) {
    std::memcpy(to, from, bytes);
    return;
  }
  std::memcpy(to, from, head);
  to += head;
  from += head;
  bytes -= head;
  for (; bytes >= 64; bytes -= 64, to += 64, from += 64) {
    _mm_prefetch(from + 512, _MM_HINT_NTA);
    const __m128i a = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    const __m128i b = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + 16));
    const __m128i c = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + 32));
    const __m128i d = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + 48));
    _mm_stream_si128(reinterpret_cast<__m128i*>(to), a);
    _mm_stream_si128(reinterpret_cast<__m128i*>(to + 16), b);
    _mm_stream_si128(reinterpret_cast<__m128i*>(to + 32), c);
    _mm_stream_si128(reinterpret_cast<__m128i*>(to + 48), d);
  }
  _mm_sfence();
  std::memcpy(to, from, bytes);
#else
  std::memcpy(destination, source, bytes);
#endif
}

uint64_t Checksum(const void* data, size_t bytes) {
  // Four independent multiply-xor lanes keep up with memory.
  constexpr uint64_t kMultiplier = 0x9E3779B97F4A7C15ull;
  uint64_t lanes[4] = {1, 2, 3, 4};
  const char* from = static_cast<const char*>(data);
  size_t left = bytes;
  for (; left >= 32; left -= 32, from += 32) {
    uint64_t words[4];
    std::memcpy(words, from, 32);
    for (int i = 0; i < 4; ++i) {
      lanes[i] = (lanes[i] ^ words[i]) * kMultiplier;
      lanes[i] ^= lanes[i] >> 29;
    }
  }
  uint64_t sum = bytes;
  for (uint64_t lane : lanes) sum = (sum ^ lane) * kMultiplier;
  for (; left > 0; --left, ++from) {
    sum = (sum ^ static_cast<unsigned char>(*from)) * kMultiplier;
  }
  return sum ^ (sum >> 32);
}

uint64_t BufferChecksum(const void* data, size_t bytes, bool portable) {
  uint32_t lanes[kLanes];
  for (size_t i = 0; i < kLanes; ++i) lanes[i] = static_cast<uint32_t>(i + 1);
  const char* from = static_cast<const char*>(data);
  const size_t stripes = bytes / kStripeBytes;
  UpdateLanes(from, stripes, portable, lanes);
  if (bytes % kStripeBytes != 0) {
    char rest[kStripeBytes] = {};
    std::memcpy(rest, from + stripes * kStripeBytes, bytes % kStripeBytes);
    UpdateLanes(rest, 1, portable, lanes);
  }
  constexpr uint64_t kMultiplier = 0x9E3779B97F4A7C15ull;
  uint64_t sum = bytes;
  for (size_t i = 0; i < kLanes; i += 2) {
    sum = (sum ^ (lanes[i] | static_cast<uint64_t>(lanes[i + 1]) << 32)) * kMultiplier;
    sum ^= sum >> 29;
  }
  return sum;
}

double MeasureCopySpeed(size_t bytes, int repeats) {
  std::vector<char> source(bytes, 1), destination(bytes, 2);
  std::vector<double> seconds;
  for (int i = 0; i < std::max(repeats, 1); ++i) {
    const auto start = std::chrono::steady_clock::now();
    CopyPastCache(destination.data(), source.data(), bytes);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    seconds.push_back(took.count());
  }
  std::sort(seconds.begin(), seconds.end());
  return static_cast<double>(bytes) / seconds[seconds.size() / 2];
}

}  // namespace tfswap
