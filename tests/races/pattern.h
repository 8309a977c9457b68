#ifndef TFSWAP_TESTS_RACES_PATTERN_H_
#define TFSWAP_TESTS_RACES_PATTERN_H_

#include <cstdint>
#include <cstring>

// ThreadSanitizer's checks of all words take far longer than the tested code, so it checks one
// word in that many bytes of these loops.
#define RACES_UNWATCHED __attribute__((no_sanitize("thread"), noinline))

namespace races {

inline constexpr int64_t kWatchedEvery = 512;

// Words that identify their owner and place: half of them are zero, so that codecs have work.
RACES_UNWATCHED inline uint32_t WordAt(int64_t index, uint32_t owner) {
  return index % 2 == 0 ? 0 : (static_cast<uint32_t>(index) * 2654435761u) ^ (owner * 40503u + 1);
}

RACES_UNWATCHED inline void FillUnwatched(char* begin, int64_t words, uint32_t owner) {
  for (int64_t i = 0; i < words; ++i) {
    reinterpret_cast<uint32_t*>(begin)[i] = WordAt(i, owner);
  }
}

RACES_UNWATCHED inline bool HoldsUnwatched(const char* begin, int64_t words, uint32_t owner) {
  for (int64_t i = 0; i < words; ++i) {
    if (reinterpret_cast<const uint32_t*>(begin)[i] != WordAt(i, owner)) return false;
  }
  return true;
}

// `data` is aligned for words.
inline void Fill(void* data, int64_t bytes, uint32_t owner) {
  char* begin = static_cast<char*>(data);
  for (int64_t i = 0; i < bytes; i += kWatchedEvery) static_cast<volatile char*>(data)[i] = 0;
  FillUnwatched(begin, bytes / 4, owner);
  for (int64_t i = bytes / 4 * 4; i < bytes; ++i) begin[i] = static_cast<char>(owner);
}

inline bool Holds(const void* data, int64_t bytes, uint32_t owner) {
  const char* begin = static_cast<const char*>(data);
  for (int64_t i = 0; i < bytes; i += kWatchedEvery) {
    (void)static_cast<const volatile char*>(data)[i];
  }
  for (int64_t i = bytes / 4 * 4; i < bytes; ++i) {
    if (begin[i] != static_cast<char>(owner)) return false;
  }
  return HoldsUnwatched(begin, bytes / 4, owner);
}

}  // namespace races

#endif  // TFSWAP_TESTS_RACES_PATTERN_H_
