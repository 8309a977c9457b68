#ifndef TFSWAP_CC_CODECS_BLOSC_H_
#define TFSWAP_CC_CODECS_BLOSC_H_

#include <cstddef>
#include <string>

#include "codecs/codec.h"

namespace tfswap {

// LZ4, Zstd and ZFP, by c-blosc2: an optional library, which is found while the program runs.

// Loads it, once. Answers an empty text, or why it cannot be used. Thread-safe.
std::string LoadBlosc(const std::string& path);
bool BloscIsLoaded();

// The body of one section, as in codecs/sparse.h: bytes written, or 0 where they would be more than
// `capacity` or the library is not loaded. Whole words only are given to c-blosc2; what is left of
// the section follows as it is. ZFP sees rows of 64 floats, four at a time: its cells are 4 x 4.
size_t EncodeWithBlosc(const CodecSpec& spec, const char* from, size_t bytes, char* to,
                       size_t capacity);
bool DecodeWithBlosc(const CodecSpec& spec, const char* from, size_t encoded_bytes, char* to,
                     size_t bytes);

}  // namespace tfswap

#endif  // TFSWAP_CC_CODECS_BLOSC_H_
