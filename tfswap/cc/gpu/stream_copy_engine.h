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

// Copies on a GPU's own streams. Everything is decided when the host gives the command: a buffer
// that leaves is gone at once, one that comes back is there at once, and the GPU is told what has
// to wait for what (core/gpu/hazard_tracker.h). So the host waits for no copy, ever; only a swap-in
// for which there is no memory yet goes to a thread that waits for some.
//
// The file is the exception (stream_file_tier.h): there a buffer is gone when the disk has it, and
// until then the device holds it. If the disk fails it goes to pinned memory, or stays.
//
// What is to be kept compressed is encoded by the GPU, straight into pinned memory: so less
// crosses the link. How long it becomes is not known before the GPU has done it, so its block has
// room for the worst, and the count of what was kept is filled in when the GPU has told it.
class StreamCopyEngine : public CopyEngine {
 public:
  StreamCopyEngine(DeviceAllocator* allocator, CudaCard* gpu, HazardTracker* tracker);

  void Leave(const FarBufferPtr& buffer, Done done) override;
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
                                       const PlacementRequest& wish, FarCopy* copy) override;
  absl::Status CopyVariableIn(const FarCopy& copy, const PlacementRequest& wish,
                              void* data) override;
  void BeforeVariableUse(const void* data) override { tracker_->BeforeUse(data); }
  bool MovesAtOnce(FarTier tier) const override { return tier != FarTier::kFile; }
  void DropFarCopy(FarCopy* copy) override;

 private:
  // Of an encoded buffer: what the GPU is to tell.
  struct Awaited {
    uint64_t* far_bytes;
    bool counts;  // not if statistics began anew meanwhile
  };

  void EvictLocked(const FarBufferPtr& buffer, std::vector<tensorflow::Tensor>* given_up) override;
  // Gives the copy out to the GPU, and the tensor to `given_up`; both not, and the buffer stays,
  // if there is no far memory. Or has it begin to leave for the file, and takes `done` if that is
  // where it was to go. With mu_ held.
  absl::Status SendLocked(const FarBufferPtr& buffer, Done* done,
                          std::vector<tensorflow::Tensor>* given_up);
  // The copy to pinned memory, as it is or encoded; not held if there is no room. Answers "" or why
  // the GPU refused it. With mu_ held.
  std::string CopyToMemoryLocked(const void* block, int64_t bytes, const PlacementRequest& wish,
                                 FarCopy* copy);
  // The copy to the file, whose caller waits for it; whether there was room.
  bool CopyToFile(const HazardTracker::Whole& whole, int64_t bytes, const PlacementRequest& wish,
                  FarCopy* copy, int64_t* disk_ns);
  void SendToFile(const FarBufferPtr& buffer, const HazardTracker::Whole& whole, const Done& done);
  bool Fill(tensorflow::Tensor* output, const FarBufferPtr& buffer, absl::Status* status) override;
  absl::Status FillWhole(tensorflow::Tensor* output, const FarBufferPtr& buffer);
  // Fills a block from pinned memory or the file; answers "" or what went wrong.
  std::string FillBlock(void* block, const FarCopy& copy, const PlacementRequest& wish,
                        int64_t* disk_ns);
  bool FillFromMemory(void* block, const FarCopy& copy, const PlacementRequest& wish);
  bool FillsAtOnce(const FarBuffer& buffer) const override {
    return buffer.far_copy_.tier != FarTier::kFile;
  }

  // Takes far memory that what is in `block` can go to; whether there is some.
  bool TakeFarMemory(const void* block, int64_t bytes, const PlacementRequest& wish, FarCopy* copy);
  // Whether the GPU can encode it, from there.
  bool CanEncode(const void* block, const CodecSpec& spec);
  // Between a block of the GPU's and its far copy.
  Transfer TransferOf(const void* block, const CodecSpec& spec, const FarCopy& copy) const;
  std::string GpuFailed() const { return std::string(gpu_->status().message()); }
  void LearnKeptBytesLocked();
  // Of a block of the GPU's, by way of the host, which waits for it. In verify mode only.
  uint64_t ChecksumOf(const void* block, int64_t bytes);

  CudaCard* const gpu_;
  HazardTracker* const tracker_;
  HostPool host_memory_;
  std::atomic<bool> far_memory_full_{false};
  FarCounts counts_;
  StreamFileTier file_;
  StreamCodecs codecs_;
  GpuSampler sampler_;
  PinnedNumbers numbers_;        // guarded by mu_
  std::deque<Awaited> awaited_;  // guarded by mu_; in the order of the GPU
};

}  // namespace tfswap

#endif  // TFSWAP_CC_GPU_STREAM_COPY_ENGINE_H_
