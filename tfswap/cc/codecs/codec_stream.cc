#include "codecs/codec_stream.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <mutex>

#include "core/memory/copy.h"
#include "core/util/thread_team.h"

namespace tfswap {
namespace {

// With less per thread, starting one does not pay off.
constexpr size_t kMinBytesPerThread = 512 << 10;
// Larger buffers bypass the caches, which would not hold them until they are read.
constexpr size_t kPastCacheBytes = 1 << 20;
constexpr size_t kSectionsPerTake = 4;

// Per-thread scratch for a section that is split across chunks.
char* Scratch() {
  thread_local const std::unique_ptr<char[]> scratch(new char[MaxEncodedBytes(kSectionBytes)]);
  return scratch.get();
}

int UsefulThreads(size_t bytes, int threads) {
  const size_t useful = std::max(bytes / kMinBytesPerThread, size_t{1});
  return static_cast<int>(std::min(useful, static_cast<size_t>(std::max(threads, 1))));
}

size_t SectionsOf(size_t bytes) { return (bytes + kSectionBytes - 1) / kSectionBytes; }

// Distributes the sections of a buffer among threads.
class SectionQueue {
 public:
  explicit SectionQueue(size_t sections) : sections_(sections) {}

  // Call work(section) until it returns false or no section is left.
  template <typename Work>
  void Take(const Work& work) {
    while (true) {
      const size_t begin = next_.fetch_add(kSectionsPerTake, std::memory_order_relaxed);
      const size_t end = std::min(begin + kSectionsPerTake, sections_);
      if (begin >= sections_) return;
      for (size_t section = begin; section < end; ++section) {
        if (work(section)) continue;
        next_.store(sections_, std::memory_order_relaxed);
        return;
      }
    }
  }

 private:
  const size_t sections_;
  std::atomic<size_t> next_{0};
};

// State shared by the threads that encode one buffer.
struct Encoding {
  const CodecSpec& spec;
  const char* data;
  ChunkSource* source;
  EncodedBuffer* out;
  std::mutex mu;  // guards source and out->chunks
};

// Writes sections consecutively into its own chunks.
class ChunkWriter {
 public:
  explicit ChunkWriter(Encoding* encoding) : encoding_(encoding) {}

  // Return false if no chunk is available.
  bool Write(size_t index) {
    EncodedBuffer& out = *encoding_->out;
    const char* const from = encoding_->data + index * kSectionBytes;
    const size_t bytes = std::min(kSectionBytes, out.bytes - index * kSectionBytes);
    if (left_ < kSectionHeaderBytes && !NextChunk(&chunk_)) return false;
    EncodedBuffer::Section& section = out.sections[index];
    section.chunk = chunk_;
    section.offset = static_cast<uint32_t>(out.chunk_bytes - left_);
    const bool fits = left_ >= MaxEncodedBytes(bytes);
    char* const to = fits ? cursor_ : Scratch();
    const size_t encoded_bytes = EncodeUnlessStored(encoding_->spec, from, bytes, to);
    if (encoded_bytes == 0) {
      section.encoded_bytes = static_cast<uint32_t>(MaxEncodedBytes(bytes));
      return Copy(to, kSectionHeaderBytes, &section) && Copy(from, bytes, &section);
    }
    section.encoded_bytes = static_cast<uint32_t>(encoded_bytes);
    if (!fits) return Copy(to, encoded_bytes, &section);
    Advance(encoded_bytes);
    return true;
  }

 private:
  bool Copy(const char* from, size_t bytes, EncodedBuffer::Section* section) {
    const size_t first = std::min(bytes, left_);
    if (from != cursor_) CopyPastCache(cursor_, from, first);
    Advance(first);
    if (first == bytes) return true;
    if (!NextChunk(&section->rest)) return false;
    CopyPastCache(cursor_, from + first, bytes - first);
    Advance(bytes - first);
    return true;
  }

  void Advance(size_t bytes) {
    cursor_ += bytes;
    left_ -= bytes;
  }

  bool NextChunk(uint32_t* index) {
    std::lock_guard<std::mutex> lock(encoding_->mu);
    std::vector<char*>& chunks = encoding_->out->chunks;
    char* const chunk = encoding_->source->Take();
    if (chunk == nullptr) return false;
    chunk_ = *index = static_cast<uint32_t>(chunks.size());
    chunks.push_back(chunk);
    cursor_ = chunk;
    left_ = encoding_->out->chunk_bytes;
    return true;
  }

  Encoding* const encoding_;
  uint32_t chunk_ = 0;
  char* cursor_ = nullptr;
  size_t left_ = 0;
};

size_t BytesOfSection(const EncodedBuffer& encoded, size_t index) {
  return std::min(kSectionBytes, encoded.bytes - index * kSectionBytes);
}

// Return a section in one piece: in place, or assembled in this thread's scratch.
const char* Contiguous(const EncodedBuffer& encoded, const EncodedBuffer::Section& section) {
  const char* const from = encoded.chunks[section.chunk] + section.offset;
  const size_t first = encoded.chunk_bytes - section.offset;
  if (section.encoded_bytes <= first) return from;
  char* const whole = Scratch();
  std::memcpy(whole, from, first);
  std::memcpy(whole + first, encoded.chunks[section.rest], section.encoded_bytes - first);
  return whole;
}

bool DecodeOne(const EncodedBuffer& encoded, size_t index, void* to, bool past_cache) {
  const EncodedBuffer::Section& section = encoded.sections[index];
  return DecodeSection(Contiguous(encoded, section), section.encoded_bytes, to,
                       BytesOfSection(encoded, index), past_cache);
}

}  // namespace

bool Encode(const CodecSpec& spec, const void* data, size_t bytes, int threads, ChunkSource* source,
            EncodedBuffer* out) {
  *out = EncodedBuffer();
  out->bytes = bytes;
  out->chunk_bytes = source->chunk_bytes();
  out->sections.resize(SectionsOf(bytes));
  Encoding encoding = {spec, static_cast<const char*>(data), source, out, {}};
  SectionQueue queue(out->sections.size());
  std::atomic<bool> complete{out->chunk_bytes >= MaxEncodedBytes(kSectionBytes)};
  if (complete) {
    ThreadTeam::Shared().RunParallel(UsefulThreads(bytes, threads), [&] {
      ChunkWriter writer(&encoding);
      queue.Take([&](size_t section) {
        if (!writer.Write(section)) complete = false;
        return complete.load(std::memory_order_relaxed);
      });
    });
  }
  if (!complete) {
    Release(out, source);
    return false;
  }
  for (const EncodedBuffer::Section& section : out->sections) {
    out->encoded_bytes += section.encoded_bytes;
  }
  return true;
}

bool Decode(const EncodedBuffer& encoded, void* data, int threads) {
  SectionQueue queue(encoded.sections.size());
  std::atomic<bool> well_formed{true};
  const bool past_cache = encoded.bytes >= kPastCacheBytes;
  ThreadTeam::Shared().RunParallel(UsefulThreads(encoded.bytes, threads), [&] {
    queue.Take([&](size_t section) {
      char* const to = static_cast<char*>(data) + section * kSectionBytes;
      if (!DecodeOne(encoded, section, to, past_cache)) well_formed = false;
      return well_formed.load(std::memory_order_relaxed);
    });
  });
  return well_formed;
}

size_t DecodeOneSection(const EncodedBuffer& encoded, size_t index, void* to) {
  return DecodeOne(encoded, index, to, /*past_cache=*/false) ? BytesOfSection(encoded, index) : 0;
}

uint64_t ChecksumOf(const EncodedBuffer& encoded) {
  std::vector<uint64_t> of_sections;
  of_sections.reserve(encoded.sections.size());
  for (const EncodedBuffer::Section& section : encoded.sections) {
    of_sections.push_back(Checksum(Contiguous(encoded, section), section.encoded_bytes));
  }
  return Checksum(of_sections.data(), of_sections.size() * sizeof(uint64_t));
}

void Release(EncodedBuffer* encoded, ChunkSource* source) {
  for (char* chunk : encoded->chunks) source->Give(chunk);
  *encoded = EncodedBuffer();
}

}  // namespace tfswap
