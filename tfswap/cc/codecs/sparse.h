#ifndef TFSWAP_CC_CODECS_SPARSE_H_
#define TFSWAP_CC_CODECS_SPARSE_H_

#include <cstddef>

namespace tfswap {

// Three codecs for sparse data. A word is zero if all its bits are; -0.0 is not. All store the
// non-zero words consecutively and differ in how they store their positions:
//
//  ZVC  one bit per word                                               (bits, values)
//  RLE  lengths of alternating zero and non-zero runs, 16 bits  (count, lengths, values)
//  CSR  position of each value in its section, 16 bits        (count, positions, values)
//
// RLE ignores runs of zeros that would cost more than they save. The bytes after the last whole
// word are appended uncompressed.
//
// Encoders return the bytes written, or 0 if they would exceed `capacity`; any of to[0, capacity)
// may be overwritten then. A section has at most 65,535 words. Decoders return false for malformed
// input and never access memory outside of their arguments.
size_t EncodeZvc(int element_bytes, const char* from, size_t bytes, char* to, size_t capacity);
size_t EncodeRle(int element_bytes, const char* from, size_t bytes, char* to, size_t capacity);
size_t EncodeCsr(int element_bytes, const char* from, size_t bytes, char* to, size_t capacity);

// `past_cache`: bypass the caches because the output is not read soon.
bool DecodeZvc(int element_bytes, const char* from, size_t encoded_bytes, char* to, size_t bytes,
               bool past_cache);
bool DecodeRle(int element_bytes, const char* from, size_t encoded_bytes, char* to, size_t bytes,
               bool past_cache);
bool DecodeCsr(int element_bytes, const char* from, size_t encoded_bytes, char* to, size_t bytes);

}  // namespace tfswap

#endif  // TFSWAP_CC_CODECS_SPARSE_H_
