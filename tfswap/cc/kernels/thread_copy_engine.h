#ifndef TFSWAP_CC_KERNELS_THREAD_COPY_ENGINE_H_
#define TFSWAP_CC_KERNELS_THREAD_COPY_ENGINE_H_

#include <string>
#include <utility>
#include <vector>

#include "core/memory/buffer_chunks.h"
#include "far/loss_meter.h"
#include "kernels/copy_engine.h"
#include "kernels/worker.h"

namespace tfswap {

// Copies on threads: one per direction, and one more each for the file, whose copies mostly wait.
// Planned copies run in FIFO order and before on-demand swap-ins, which are ordered by the position
// of their readers in the step.
class ThreadCopyEngine : public CopyEngine {
 public:
  explicit ThreadCopyEngine(DeviceAllocator* allocator) : CopyEngine(allocator) {}

  void SwapOut(const FarBufferPtr& buffer, Done done) override;
  void EmulateLink(double bytes_per_s, int64_t latency_ns) override;
  std::string WhyBlocked(int64_t missing_bytes) const override {
    return far()->WhyBlocked(missing_bytes);
  }
  HostPool* host_memory() override { return far()->host(); }
  FarStats FarUse() override { return far()->Stats(); }
  void ResetFarUse() override { far()->ResetStats(); }
  void SampleCodecs(std::vector<Codec> codecs) override { sampler()->SetCodecs(std::move(codecs)); }
  void Sample(const FarBuffer& buffer, const void* data) override;
  std::vector<CodecSample> CodecSamples() override { return sampler()->Samples(); }

  absl::StatusOr<bool> CopyVariableOut(const void* data, int64_t bytes,
                                       const PlacementRequest& request, FarCopy* copy) override;
  absl::Status CopyVariableIn(const FarCopy& copy, const PlacementRequest& request,
                              void* data) override;
  absl::Status CopyVariableRowsIn(const FarCopy& copy, int64_t row_bytes,
                                  const std::vector<int64_t>& rows, char* output) override;
  void DropFarCopy(FarCopy* copy) override { far()->Drop(copy); }

  // Shared by all CPUs.
  static FarMemory* far();
  static RatioSampler* sampler();
  static LossMeter* loss_meter();

 private:
  Worker* Leaver(FarTier tier) override { return tier == FarTier::kFile ? &file_out_ : &out_; }
  void EvictLocked(const FarBufferPtr& buffer, Evicted* evicted) override;
  void CopyEvicted(const FarBufferPtr& buffer) override { CopyOut(buffer, nullptr); }
  bool FillsAtOnce(const FarBuffer& buffer) const override;
  // Call this with mu_ held.
  void StartSwapOut(const FarBufferPtr& buffer, Done done);
  void CopyOut(const FarBufferPtr& buffer, const Done& done);
  // Copy a piece of a buffer; return whether there was space.
  bool PutPiece(const FarBuffer& buffer, const void* data, int64_t bytes, FarCopy* copy);
  // Copy in chunks and release the memory of each chunk. If far memory runs out, the buffer stays,
  // or the part of it that was not released.
  void PutChunks(FarBuffer* buffer, int references, FarCopy* copy);
  bool Fill(tensorflow::Tensor* output, const FarBufferPtr& buffer, absl::Status* status) override;
  absl::Status GetPiece(const FarBuffer& buffer, const FarCopy& copy, char* data);
  int64_t FirstChunk(const FarBuffer& buffer) const override;
  // Return the bytes to commit before a chunk is filled.
  static int64_t BytesToCommit(const BufferChunks& chunks, int number);
  enum Direction { kOut, kIn };
  // Delay a copy to the time that it takes on the emulated link, where copies in each direction run
  // one after the other. The file has its own link.
  void EmulateLinkDelay(int64_t start_ns, const FarCopy& copy, Direction direction);

  Worker out_{"tfswap_out"};
  std::atomic<double> link_ns_per_byte_{0};
  std::atomic<int64_t> link_latency_ns_{0};
  std::atomic<int64_t> link_free_ns_[2] = {};  // by direction
};

}  // namespace tfswap

#endif  // TFSWAP_CC_KERNELS_THREAD_COPY_ENGINE_H_
