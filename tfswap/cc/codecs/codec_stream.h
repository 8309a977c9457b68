#ifndef TFSWAP_CC_CODECS_CODEC_STREAM_H_
#define TFSWAP_CC_CODECS_CODEC_STREAM_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "codecs/codec.h"

namespace tfswap {

// The source of memory for encoded buffers: chunks of one size, at least
// MaxEncodedBytes(kSectionBytes); with 256 KiB or more, few sections are split. Calls for one
// buffer are serialized.
class ChunkSource {
 public:
  virtual ~ChunkSource() = default;
  virtual char* Take() = 0;  // null: no chunk is available
  virtual void Give(char* chunk) = 0;
  virtual size_t chunk_bytes() const = 0;
};

// The sections of a buffer in its chunks. Each encoding thread fills its own chunks, so sections of
// a chunk need not be neighbours in the buffer:
//
//   chunk 0  | section 0 | section 1 | section 4 | section 5, begin |
//   chunk 1  | section 2 | section 3 |       (another thread's)
//   chunk 2  | section 5, rest | section 6 |
struct EncodedBuffer {
  struct Section {
    uint32_t chunk = 0;
    uint32_t offset = 0;
    uint32_t encoded_bytes = 0;
    uint32_t rest = 0;  // the chunk that starts with the rest of a split section
  };

  size_t bytes = 0;          // of the source
  size_t encoded_bytes = 0;  // of all sections
  size_t chunk_bytes = 0;
  std::vector<char*> chunks;
  std::vector<Section> sections;
};

// Encode `data` into chunks with up to `threads` threads, including this one. Return false if there
// were too few chunks; all are given back then, and `out` is empty.
bool Encode(const CodecSpec& spec, const void* data, size_t bytes, int threads, ChunkSource* source,
            EncodedBuffer* out);

// Decode one section into `to`, which must have space for kSectionBytes. Return its bytes; 0 if it
// is malformed.
size_t DecodeOneSection(const EncodedBuffer& encoded, size_t index, void* to);

// Return a checksum of the encoded data, to detect corruption.
uint64_t ChecksumOf(const EncodedBuffer& encoded);

// Return false if a section is malformed. Large buffers are written past the caches.
bool Decode(const EncodedBuffer& encoded, void* data, int threads);

// Return the chunks to their source.
void Release(EncodedBuffer* encoded, ChunkSource* source);

}  // namespace tfswap

#endif  // TFSWAP_CC_CODECS_CODEC_STREAM_H_
