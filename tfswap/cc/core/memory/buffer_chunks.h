#ifndef TFSWAP_CC_CORE_MEMORY_BUFFER_CHUNKS_H_
#define TFSWAP_CC_CORE_MEMORY_BUFFER_CHUNKS_H_

#include <algorithm>
#include <cstdint>

namespace tfswap {

// The chunks in which a large buffer is copied.
//
// The device memory of a chunk is released as soon as it has been copied out, and allocated when it
// is about to be filled (tvDNN, PPoPP 2018: residency at the granularity of sections). With four
// chunks, three quarters of two copies in opposite directions overlap even if there is memory for
// one buffer only; smaller chunks would only cost more.
class BufferChunks {
 public:
  static constexpr int64_t kMinBytes = int64_t{16} << 20;
  static constexpr int64_t kMaxCount = 4;
  // Alignment of chunks: the page size at which the system releases memory.
  static constexpr int64_t kUnitBytes = int64_t{2} << 20;

  explicit BufferChunks(int64_t bytes)
      : bytes_(bytes),
        count_(static_cast<int>(std::clamp<int64_t>(bytes / kMinBytes, 1, kMaxCount))) {}

  int count() const { return count_; }
  // The start of a chunk; for `count()`, the end of the buffer.
  int64_t begin(int number) const {
    return number == count_ ? bytes_ : bytes_ / count_ * number / kUnitBytes * kUnitBytes;
  }
  int64_t bytes(int number) const { return begin(number + 1) - begin(number); }

 private:
  int64_t bytes_;
  int count_;
};

}  // namespace tfswap

#endif  // TFSWAP_CC_CORE_MEMORY_BUFFER_CHUNKS_H_
