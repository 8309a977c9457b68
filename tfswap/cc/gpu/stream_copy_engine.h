#ifndef TFSWAP_CC_GPU_STREAM_COPY_ENGINE_H_
#define TFSWAP_CC_GPU_STREAM_COPY_ENGINE_H_

#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "core/gpu/hazard_tracker.h"
#include "far/far_counts.h"
#include "gpu/cuda_gpu.h"
#include "gpu/gpu_sampler.h"
#include "gpu/pinned_numbers.h"
#include "gpu/stream_codecs.h"
#include "gpu/stream_file_tier.h"
#include "kernels/copy_engine.h"

namespace tfswap {

// Copies on streams of the GPU. All decisions are made when the host enqueues a command: a
// swapped-out buffer is released as soon as no op reads it any more, a swapped-in one exists
// immediately, and the GPU is given the dependencies (core/gpu/hazard_tracker.h). So the host never
// blocks for a copy; only a swap-in without available memory goes to a thread that waits for
// memory.
//
// The file is the exception (stream_file_tier.h): a buffer is released when the disk has it, and
// occupies the device until then. If the disk fails, the buffer goes to pinned memory or stays.
//
// Compressed buffers are encoded by the GPU directly into pinned memory, which reduces the traffic
// of the link. The encoded size is known only when the GPU has finished, so a block has its maximum
// size, and the statistics are updated when the GPU has written the size.
class StreamCopyEngine : public CopyEngine {
 public:
  StreamCopyEngine(DeviceAllocator* allocator, CudaGpu* gpu, HazardTracker* tracker);

  void SwapOut(const FarBufferPtr& buffer, Done done) override;
  void ReleaseUnread() override;
  absl::StatusOr<LinkTimes> MeasureLink(int64_t block_bytes, int copies) override;
  std::string WhyBlocked(int64_t missing_bytes) const override;
  HostPool* host_memory() override { return &host_memory_; }
  FarStats FarUse() override;
  void ResetFarUse() override;
  std::string PrepareForFile() override { return file_.Prepare(); }
  void ReleaseFromFile() override { file_.Release(); }
  void SampleCodecs(std::vector<Codec> codecs) override { sampler_.SetCodecs(std::move(codecs)); }
  void Sample(const FarBuffer& buffer, const void* data) override;
  std::vector<CodecSample> CodecSamples() override { return sampler_.Samples(); }
  DeviceCodecs* codecs() override { return &codecs_; }
  absl::StatusOr<bool> CopyVariableOut(const void* data, int64_t bytes,
                                       const PlacementRequest& request, FarCopy* copy) override;
  absl::Status CopyVariableIn(const FarCopy& copy, const PlacementRequest& request,
                              void* data) override;
  void BeforeVariableUse(const void* data) override { tracker_->BeforeUse(data); }
  bool MovesAtOnce(FarTier tier) const override { return tier != FarTier::kFile; }
  void DropFarCopy(FarCopy* copy) override;

 private:
  // The encoded size of a buffer, which the GPU will write.
  struct PendingSize {
    uint64_t* far_bytes;
    bool counts;  // false if statistics were reset meanwhile
  };

  void EvictLocked(const FarBufferPtr& buffer, Evicted* evicted) override;
  // Enqueue the copy-out and release the tensor into `given_up`; do neither if far memory is full.
  // For the file, start the copy on a thread instead, and take `done` if the file was requested.
  // Call with mu_ held.
  absl::Status SwapOutLocked(const FarBufferPtr& buffer, Done* done,
                             std::vector<tensorflow::Tensor>* given_up);
  // Copy to pinned memory, plain or encoded; `copy` is not held if there is no space. Return "" or
  // why the GPU refused the command. Call with mu_ held.
  std::string CopyToMemoryLocked(const void* block, int64_t bytes, const PlacementRequest& request,
                                 FarCopy* copy);
  // Copy to the file and wait for it; return whether there was space.
  bool CopyToFile(const HazardTracker::PiecewiseMove& whole, int64_t bytes,
                  const PlacementRequest& request, FarCopy* copy, int64_t* disk_ns);
  void SendToFile(const FarBufferPtr& buffer, const HazardTracker::PiecewiseMove& whole,
                  const Done& done);
  bool Fill(tensorflow::Tensor* output, const FarBufferPtr& buffer, absl::Status* status) override;
  absl::Status FillOutput(tensorflow::Tensor* output, const FarBufferPtr& buffer);
  // Fill a block from pinned memory or the file; return an error message or "".
  std::string FillBlock(void* block, const FarCopy& copy, const PlacementRequest& request,
                        int64_t* disk_ns);
  bool FillFromMemory(void* block, const FarCopy& copy, const PlacementRequest& request);
  bool FillsAtOnce(const FarBuffer& buffer) const override {
    return buffer.far_copy_.tier != FarTier::kFile;
  }

  // Allocate far memory for the contents of `block`; return whether there was some.
  bool TakeFarMemory(const void* block, int64_t bytes, const PlacementRequest& request,
                     FarCopy* copy);
  // Return whether the GPU can encode this block.
  bool CanEncode(const void* block, const CodecSpec& spec);
  // Return the transfer between a device block and its far copy.
  Transfer TransferOf(const void* block, const CodecSpec& spec, const FarCopy& copy) const;
  std::string GpuFailed() const { return std::string(gpu_->status().message()); }
  void UpdateFarBytesLocked();
  // Compute the checksum of a device block on the host, which blocks. In verify mode only.
  uint64_t ChecksumOf(const void* block, int64_t bytes);

  CudaGpu* const gpu_;
  HazardTracker* const tracker_;
  HostPool host_memory_;
  // Tensors whose copies-out were enqueued. While an op holds one, so does this: an op that holds
  // the last reference may write its output there, and no copy-out is ordered before that.
  std::mutex unread_mu_;
  std::vector<tensorflow::Tensor> unread_;
  std::atomic<bool> has_unread_{false};
  std::atomic<bool> far_memory_full_{false};
  FarCounts counts_;
  StreamFileTier file_;
  StreamCodecs codecs_;
  GpuSampler sampler_;
  PinnedNumbers numbers_;                  // guarded by mu_
  std::deque<PendingSize> pending_sizes_;  // guarded by mu_; in GPU order
};

}  // namespace tfswap

#endif  // TFSWAP_CC_GPU_STREAM_COPY_ENGINE_H_
