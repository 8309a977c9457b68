#ifndef TFSWAP_TESTS_RACES_PATTERN_H_
#define TFSWAP_TESTS_RACES_PATTERN_H_

#include <cstdint>
#include <cstring>

namespace races {

// Words that tell whose they are and where: half of them are zero, so that codecs have work.
inline uint32_t WordAt(int64_t index, uint32_t owner) {
  return index % 2 == 0 ? 0 : (static_cast<uint32_t>(index) * 2654435761u) ^ (owner * 40503u + 1);
}

inline void Fill(void* data, int64_t bytes, uint32_t owner) {
  char* begin = static_cast<char*>(data);
  for (int64_t i = 0; i < bytes / 4; ++i) {
    const uint32_t word = WordAt(i, owner);
    std::memcpy(begin + 4 * i, &word, 4);
  }
  std::memset(begin + bytes / 4 * 4, static_cast<int>(owner & 0xFF), bytes % 4);
}

inline bool Holds(const void* data, int64_t bytes, uint32_t owner) {
  const char* begin = static_cast<const char*>(data);
  for (int64_t i = 0; i < bytes / 4; ++i) {
    uint32_t word;
    std::memcpy(&word, begin + 4 * i, 4);
    if (word != WordAt(i, owner)) return false;
  }
  for (int64_t i = bytes / 4 * 4; i < bytes; ++i) {
    if (static_cast<uint8_t>(begin[i]) != (owner & 0xFF)) return false;
  }
  return true;
}

}  // namespace races

#endif  // TFSWAP_TESTS_RACES_PATTERN_H_
