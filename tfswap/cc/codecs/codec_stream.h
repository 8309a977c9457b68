#ifndef TFSWAP_CC_CODECS_CODEC_STREAM_H_
#define TFSWAP_CC_CODECS_CODEC_STREAM_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "codecs/codec.h"

namespace tfswap {

// Where encoded buffers are: chunks of one size, of at least MostEncodedBytes(kSectionBytes); 256
// KiB or more keep few sections from being split. Called by one thread at a time for one buffer.
class ChunkSource {
 public:
  virtual ~ChunkSource() = default;
  virtual char* Take() = 0;  // null: there are no more
  virtual void Give(char* chunk) = 0;
  virtual size_t chunk_bytes() const = 0;
};

// A buffer's sections in its chunks. Each thread that encodes fills chunks of its own, so sections
// of one chunk may be far from each other in the buffer:
//
//   chunk 0  | section 0 | section 1 | section 4 | section 5, begin |
//   chunk 1  | section 2 | section 3 |       (another thread's)
//   chunk 2  | section 5, rest | section 6 |
struct EncodedBuffer {
  struct Section {
    uint32_t chunk = 0;
    uint32_t offset = 0;
    uint32_t encoded_bytes = 0;
    uint32_t rest = 0;  // the chunk whose beginning has what the first has no room for
  };

  size_t bytes = 0;          // of the source
  size_t encoded_bytes = 0;  // of all sections
  size_t chunk_bytes = 0;
  std::vector<char*> chunks;
  std::vector<Section> sections;
};

// Encodes straight from `data` into chunks, with up to `threads` threads, this one among them.
// False: there were too few chunks; all that were taken have been given back, and `out` is empty.
bool Encode(const CodecSpec& spec, const void* data, size_t bytes, int threads, ChunkSource* source,
            EncodedBuffer* out);

// One section by itself, into `to`, which has room for kSectionBytes. Answers its bytes; 0: it is
// malformed.
size_t DecodeOneSection(const EncodedBuffer& encoded, size_t index, void* to);

// Of all that is kept, to notice what changed.
uint64_t ChecksumOf(const EncodedBuffer& encoded);

// False: a section is malformed. Large buffers are written past the caches.
bool Decode(const EncodedBuffer& encoded, void* data, int threads);

// Gives the chunks back.
void Release(EncodedBuffer* encoded, ChunkSource* source);

}  // namespace tfswap

#endif  // TFSWAP_CC_CODECS_CODEC_STREAM_H_
