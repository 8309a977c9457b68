#ifndef TFSWAP_CC_KERNELS_THREAD_COPY_ENGINE_H_
#define TFSWAP_CC_KERNELS_THREAD_COPY_ENGINE_H_

#include <string>
#include <utility>
#include <vector>

#include "core/memory/sections.h"
#include "far/loss_meter.h"
#include "kernels/copy_engine.h"
#include "kernels/worker.h"

namespace tfswap {

// Copies on threads of its own: one a direction, and one more each for the file, whose copies only
// wait. What a plan moves goes first come first served, and before lazy swap-ins, which go by the
// place of their readers in the step.
class ThreadCopyEngine : public CopyEngine {
 public:
  explicit ThreadCopyEngine(DeviceAllocator* allocator) : CopyEngine(allocator) {}

  void Leave(const FarBufferPtr& buffer, Done done) override;
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
                                       const PlacementRequest& wish, FarCopy* copy) override;
  absl::Status CopyVariableIn(const FarCopy& copy, const PlacementRequest& wish,
                              void* data) override;
  void DropFarCopy(FarCopy* copy) override { far()->Drop(copy); }

  // These are one for all CPUs.
  static FarMemory* far();
  static RatioSampler* sampler();
  static LossMeter* loss_meter();

 private:
  Worker* Leaver(FarTier tier) override { return tier == FarTier::kFile ? &file_out_ : &out_; }
  void EvictLocked(const FarBufferPtr& buffer, std::vector<tensorflow::Tensor>* given_up) override;
  // With mu_ held.
  void StartLeaving(const FarBufferPtr& buffer, Done done);
  void CopyOut(const FarBufferPtr& buffer, const Done& done);
  // Of a buffer; whether there was room.
  bool PutPiece(const FarBuffer& buffer, const void* data, int64_t bytes, FarCopy* copy);
  // What has left is given back at once. Without room for all of it, it stays as it is, or what was
  // not given back by then does.
  void PutSections(FarBuffer* buffer, int references, FarCopy* copy);
  bool Fill(tensorflow::Tensor* output, const FarBufferPtr& buffer, absl::Status* status) override;
  absl::Status GetPiece(const FarBuffer& buffer, const FarCopy& copy, char* data);
  int64_t FirstSection(const FarBuffer& buffer) const override;
  // What has to be paid for before a section is filled.
  static int64_t PaidFor(const Sections& sections, int number);
  enum Direction { kOut, kIn };
  // Of what crosses the link, one after the other each way; the file has a link of its own.
  void HoldForLink(int64_t start_ns, const FarCopy& copy, Direction direction);

  Worker out_{"tfswap_out"};
  std::atomic<double> link_ns_per_byte_{0};
  std::atomic<int64_t> link_latency_ns_{0};
  std::atomic<int64_t> link_free_ns_[2] = {};  // when it is, each way
};

}  // namespace tfswap

#endif  // TFSWAP_CC_KERNELS_THREAD_COPY_ENGINE_H_
