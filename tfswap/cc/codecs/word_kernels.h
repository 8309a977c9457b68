#ifndef TFSWAP_CC_CODECS_WORD_KERNELS_H_
#define TFSWAP_CC_CODECS_WORD_KERNELS_H_

#include <cstddef>
#include <cstdint>

namespace tfswap {

// The inner loops of the codecs for sparse data, over *words* of 2 or 4 bytes in *groups* of 32. A
// group has one bitmap of 32 bits, the first word's bit lowest; a bit is set where the word is
// kept.
constexpr size_t kGroupWords = 32;
constexpr size_t kBitmapBytes = kGroupWords / 8;

// Pointers need no alignment. Where `..._end` is given, a loop stops before the first group for
// which a whole group of words would not fit in front of it, and answers how many groups it did.
struct WordKernels {
  // Sets the bits of words that are not zero; answers how many there are.
  size_t (*mark)(const char* from, size_t groups, char* bits);
  // Marks, and writes the marked words one behind the other.
  size_t (*mark_and_pack)(const char* from, size_t groups, char* bits, char** to,
                          const char* to_end);
  // Writes the words whose bits are set.
  size_t (*pack)(const char* from, size_t groups, const char* bits, char** to, const char* to_end);
  // The reverse of pack, with zeros for the others. `past_cache`: the words are not read soon.
  size_t (*unpack)(const char** values, const char* values_end, size_t groups, const char* bits,
                   char* to, bool past_cache);
  // Places of the set bits, from `first` on, in 16 bits each.
  size_t (*positions)(const char* bits, size_t groups, uint16_t first, char** to,
                      const char* to_end);
  size_t (*count_bits)(const char* bits, size_t groups);
  size_t (*count_zeros)(const char* from, size_t words);
};

// In word_kernels_<path>.cc, of words of so many bytes: 2, else 4; null where this machine or build
// has none.
const WordKernels* PortableKernels(int element_bytes);
const WordKernels* Avx2Kernels(int element_bytes);
const WordKernels* Avx512Kernels(int element_bytes);

}  // namespace tfswap

#endif  // TFSWAP_CC_CODECS_WORD_KERNELS_H_
