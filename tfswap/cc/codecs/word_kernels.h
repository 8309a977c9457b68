#ifndef TFSWAP_CC_CODECS_WORD_KERNELS_H_
#define TFSWAP_CC_CODECS_WORD_KERNELS_H_

#include <cstddef>
#include <cstdint>

namespace tfswap {

// The inner loops of the sparse codecs, over *words* of 2 or 4 bytes in *groups* of 32. A group has
// a bitmap of 32 bits, the first word in the lowest bit; a set bit means that the word is kept.
constexpr size_t kGroupWords = 32;
constexpr size_t kBitmapBytes = kGroupWords / 8;

// Pointers need no alignment. A kernel with an `..._end` stops before the first group of which a
// whole group of words would not fit before the end, and returns the number of processed groups.
struct WordKernels {
  // Set the bits of non-zero words; return their number.
  size_t (*mark)(const char* from, size_t groups, char* bits);
  // Mark, and write the marked words consecutively.
  size_t (*mark_and_pack)(const char* from, size_t groups, char* bits, char** to,
                          const char* to_end);
  // Write the words whose bits are set.
  size_t (*pack)(const char* from, size_t groups, const char* bits, char** to, const char* to_end);
  // The inverse of pack, with zeros for the other words. `past_cache`: bypass the caches.
  size_t (*unpack)(const char** values, const char* values_end, size_t groups, const char* bits,
                   char* to, bool past_cache);
  // Write the positions of the set bits, counted from `first`, in 16 bits each.
  size_t (*positions)(const char* bits, size_t groups, uint16_t first, char** to,
                      const char* to_end);
  size_t (*count_bits)(const char* bits, size_t groups);
  size_t (*count_zeros)(const char* from, size_t words);
};

// Defined in word_kernels_<path>.cc, for words of 2 or else 4 bytes; null if this machine or build
// has none.
const WordKernels* PortableKernels(int element_bytes);
const WordKernels* Avx2Kernels(int element_bytes);
const WordKernels* Avx512Kernels(int element_bytes);

}  // namespace tfswap

#endif  // TFSWAP_CC_CODECS_WORD_KERNELS_H_
