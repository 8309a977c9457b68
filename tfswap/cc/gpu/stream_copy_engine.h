#ifndef TFSWAP_GPU_STREAM_COPY_ENGINE_H_
#define TFSWAP_GPU_STREAM_COPY_ENGINE_H_

#include <vector>

#include "core/hazard_tracker.h"
#include "gpu/cuda_card.h"
#include "kernels/copy_engine.h"

namespace tfswap {

// Copies on a card's own streams. Everything is decided when the host gives the command: a buffer
// that leaves is gone at once, one that comes back is there at once, and the card is told what has
// to wait for what (core/hazard_tracker.h). So the host waits for no copy, ever; only a swap-in for
// which there is no memory yet goes to a thread that waits for some.
class StreamCopyEngine : public CopyEngine {
 public:
  StreamCopyEngine(DeviceAllocator* allocator, CudaCard* card, HazardTracker* tracker);

  void Leave(const FarBufferPtr& buffer, Done done) override;
  absl::StatusOr<LinkTimes> MeasureLink(int64_t block_bytes, int copies) override;
  int64_t BytesLeaving() const override { return 0; }
  bool IsCopyingIn() const override { return false; }
  std::string Hindrance() const override;
  HostPool* host_memory() override { return &host_memory_; }

 private:
  void EvictLocked(const FarBufferPtr& buffer, std::vector<tensorflow::Tensor>* given_up) override;
  // Gives the copy out to the card, and the tensor to `given_up`; both not, and the buffer stays,
  // if there is no far memory. With mu_ held.
  absl::Status SendLocked(const FarBufferPtr& buffer, std::vector<tensorflow::Tensor>* given_up);
  absl::Status Fill(tensorflow::Tensor* output, const FarBufferPtr& buffer) override;
  bool FillsAtOnce() const override { return true; }
  void DropFarCopy(FarCopy* copy) override;

  CudaCard* const card_;
  HazardTracker* const tracker_;
  HostPool host_memory_;
  std::atomic<bool> far_memory_full_{false};
};

}  // namespace tfswap

#endif  // TFSWAP_GPU_STREAM_COPY_ENGINE_H_
