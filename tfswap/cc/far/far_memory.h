#ifndef TFSWAP_CC_FAR_FAR_MEMORY_H_
#define TFSWAP_CC_FAR_FAR_MEMORY_H_

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "codecs/codec_stream.h"
#include "core/memory/host_pool.h"
#include "far/far_counts.h"
#include "far/far_file.h"

namespace tfswap {

const char* FarTierName(FarTier tier);
bool ParseFarTier(const std::string& name, FarTier* tier);

// Where a buffer is to go, and how. What finds no room there goes to another tier that has some.
struct PlacementRequest {
  FarTier tier = FarTier::kHost;
  CodecSpec codec;  // of kCompressed
  int threads = 1;  // that encode and decode
};

// One buffer's bytes in far memory.
struct FarCopy {
  FarTier tier = FarTier::kHost;
  int64_t bytes = 0;      // as on the device; 0: nothing is held
  int64_t far_bytes = 0;  // as kept
  void* block = nullptr;  // of kHost
  EncodedBuffer encoded;  // of kCompressed
  bool lossy = false;     // not every bit comes back
  int threads = 1;        // that decode it
  FileExtent extent;      // of kFile
  uint64_t checksum = 0;  // of what is to come back unchanged, where that is looked at
  // Of a buffer that went in sections (core/memory/buffer_chunks.h), each on its own. Those that found
  // no room are not held: they stayed on the device, in its first `kept_bytes` bytes.
  std::vector<FarCopy> sections;
  int64_t kept_bytes = 0;

  bool held() const { return bytes > 0; }
};

// Why a copy could not be read back; `why` is "" if it could.
struct FarProblem {
  std::string why;
  // What was read is not what had been written.
  bool changed = false;
};

// What is behind the CPUs' memory: host memory, encoded host memory, a file. Blocks its caller
// while it copies; several may at once.
class FarMemory {
 public:
  explicit FarMemory(FarFile* file);

  HostPool* host() { return &host_; }

  // How much a lossy codec may keep at most, in percent, whatever wishes say; 0, as it is at first:
  // what is wished to be encoded by one is kept as it is.
  void SetLossyRate(int percent) { lossy_rate_.store(percent); }

  // Copies out. Whether there was room.
  bool Put(const void* data, int64_t bytes, const PlacementRequest& wish, FarCopy* copy);
  // Copies in. Where something went wrong, `data` is not to be used.
  FarProblem Get(const FarCopy& copy, void* data);
  void Drop(FarCopy* copy);

  // Why there is no room, as a sentence; "" while there was some.
  std::string WhyBlocked(int64_t missing_bytes) const;

  FarStats Stats() const { return counts_.Stats(); }
  void ResetStats();

 private:
  // Encoded buffers are made of the host pool's smallest blocks.
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

  PlacementRequest Allowed(PlacementRequest wish) const;
  bool PutIn(FarTier tier, const void* data, const PlacementRequest& wish, FarCopy* copy);
  bool PutInFile(const void* data, FarCopy* copy);

  FarFile* const file_;
  HostPool host_;
  Chunks chunks_;
  FarCounts counts_;
  std::atomic<int> lossy_rate_{0};
  std::atomic<bool> full_{false};
};

}  // namespace tfswap

#endif  // TFSWAP_CC_FAR_FAR_MEMORY_H_
