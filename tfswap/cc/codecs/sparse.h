#ifndef TFSWAP_CC_CODECS_SPARSE_H_
#define TFSWAP_CC_CODECS_SPARSE_H_

#include <cstddef>

namespace tfswap {

// Three codecs for data with many zeros. A word counts as zero when all its bits are: -0.0 is not.
// All hold the non-zero words one behind the other, and differ in how they say where those were:
//
//   ZVC  a bit for each word                                             (bits, values)
//   RLE  lengths of zero and of other runs in turn, 16 bits each   (count, lengths, values)
//   CSR  the place of each value in its section, 16 bits each     (count, places, values)
//
// RLE takes no run of zeros for one that would cost more than it saves. What is left behind the
// last whole word follows as it is.
//
// Encoders answer the bytes written, or 0 where those would be more than `capacity`; they may have
// written any of to[0, capacity) then. A section has at most 65,535 words. Decoders answer false
// for what no encoder wrote; they read and write nothing outside of what they are given.
size_t EncodeZvc(int element_bytes, const char* from, size_t bytes, char* to, size_t capacity);
size_t EncodeRle(int element_bytes, const char* from, size_t bytes, char* to, size_t capacity);
size_t EncodeCsr(int element_bytes, const char* from, size_t bytes, char* to, size_t capacity);

// `past_cache`: what is decoded is not read soon.
bool DecodeZvc(int element_bytes, const char* from, size_t encoded_bytes, char* to, size_t bytes,
               bool past_cache);
bool DecodeRle(int element_bytes, const char* from, size_t encoded_bytes, char* to, size_t bytes,
               bool past_cache);
bool DecodeCsr(int element_bytes, const char* from, size_t encoded_bytes, char* to, size_t bytes);

}  // namespace tfswap

#endif  // TFSWAP_CC_CODECS_SPARSE_H_
