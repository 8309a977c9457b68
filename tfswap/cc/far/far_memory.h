#ifndef TFSWAP_CC_FAR_FAR_MEMORY_H_
#define TFSWAP_CC_FAR_FAR_MEMORY_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "codecs/codec_stream.h"
#include "core/memory/host_pool.h"
#include "far/far_counts.h"
#include "far/far_file.h"

namespace tfswap {

const char* FarTierName(FarTier tier);
bool ParseFarTier(const std::string& name, FarTier* tier);

// The requested tier of a buffer and its codec. If that tier is full, another one is used.
struct PlacementRequest {
  FarTier tier = FarTier::kHost;
  CodecSpec codec;  // of kCompressed
  int threads = 1;  // for encoding and decoding
  // A file that already has the bytes; kFile then means this one.
  std::shared_ptr<const CheckpointValue> checkpoint;
};

// A buffer's copy in far memory.
struct FarCopy {
  FarTier tier = FarTier::kHost;
  int64_t bytes = 0;      // size on the device; 0: no copy
  int64_t far_bytes = 0;  // size in far memory
  void* block = nullptr;  // of kHost
  EncodedBuffer encoded;  // of kCompressed
  bool lossy = false;     // decoding does not restore every bit
  int threads = 1;        // for decoding
  FileExtent extent;      // of kFile
  uint64_t checksum = 0;  // of the original, if checksums are enabled
  // The chunks of a buffer that was copied in chunks (core/memory/buffer_chunks.h). Chunks that did
  // not fit are not held: they stayed on the device, in the first `kept_bytes` bytes.
  std::vector<FarCopy> chunks;
  int64_t kept_bytes = 0;

  bool held() const { return bytes > 0; }
};

// Return the copy of a value that a checkpoint has.
FarCopy InCheckpoint(std::shared_ptr<const CheckpointValue> checkpoint);

// Why a copy could not be read; `why` is "" on success.
struct FarProblem {
  std::string why;
  // The data differ from those that were written.
  bool changed = false;
};

// Far memory of CPU devices: host memory, encoded host memory, and a file. Calls block while they
// copy; concurrent calls are allowed.
class FarMemory {
 public:
  explicit FarMemory(FarFile* file);

  HostPool* host() { return &host_; }

  // Set the maximum rate of lossy codecs in percent, an upper bound for requests. At 0, the
  // default, buffers that were requested with a lossy codec are stored uncompressed.
  void SetLossyRate(int percent) { lossy_rate_.store(percent); }

  // Copy out; return whether there was space.
  bool Put(const void* data, int64_t bytes, const PlacementRequest& request, FarCopy* copy);
  // Copy in; on failure the contents of `data` are undefined.
  FarProblem Get(const FarCopy& copy, void* data);
  // Copy rows of a copy that is not encoded: from a file, the pieces that they are in. Return "" or
  // an error message.
  std::string GetRows(const FarCopy& copy, int64_t row_bytes, const std::vector<int64_t>& rows,
                      char* output);
  void Drop(FarCopy* copy);

  // Return a sentence that explains why far memory is full; "" if it is not.
  std::string WhyBlocked(int64_t missing_bytes) const;

  FarStats Stats() const { return counts_.Stats(); }
  void ResetStats();

 private:
  // Encoded buffers consist of small blocks of the host pool.
  class Chunks : public ChunkSource {
   public:
    explicit Chunks(HostPool* pool) : pool_(pool) {}
    char* Take() override { return static_cast<char*>(pool_->Allocate(kChunkBytes)); }
    void Give(char* chunk) override { pool_->Free(chunk, kChunkBytes); }
    size_t chunk_bytes() const override { return kChunkBytes; }

   private:
    static constexpr int64_t kChunkBytes = 256 << 10;
    HostPool* const pool_;
  };

  PlacementRequest Allowed(PlacementRequest request) const;
  bool PutIn(FarTier tier, const void* data, const PlacementRequest& request, FarCopy* copy);
  bool PutInFile(const void* data, const PlacementRequest& request, FarCopy* copy);

  FarFile* const file_;
  HostPool host_;
  Chunks chunks_;
  FarCounts counts_;
  std::atomic<int> lossy_rate_{0};
  std::atomic<bool> full_{false};
};

}  // namespace tfswap

#endif  // TFSWAP_CC_FAR_FAR_MEMORY_H_
