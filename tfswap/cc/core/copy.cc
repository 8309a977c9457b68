#include "core/copy.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <vector>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace tfswap {

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
