#ifndef TFSWAP_CC_CODECS_BLOSC_H_
#define TFSWAP_CC_CODECS_BLOSC_H_

#include <cstddef>
#include <string>

#include "codecs/codec.h"

namespace tfswap {

// LZ4, Zstd and ZFP from c-blosc2, an optional library that is loaded at run time.

// Load the library once. Return "" or why it cannot be used. Thread-safe.
std::string LoadBlosc(const std::string& path);
bool BloscIsLoaded();

// Encode the body of a section (see codecs/sparse.h): return the bytes written, or 0 if they would
// exceed `capacity` or the library is not loaded. Only whole words are encoded; the rest is
// appended uncompressed. ZFP gets rows of 64 floats, four at a time, because its cells are 4 x 4.
size_t EncodeWithBlosc(const CodecSpec& spec, const char* from, size_t bytes, char* to,
                       size_t capacity);
bool DecodeWithBlosc(const CodecSpec& spec, const char* from, size_t encoded_bytes, char* to,
                     size_t bytes);

}  // namespace tfswap

#endif  // TFSWAP_CC_CODECS_BLOSC_H_
