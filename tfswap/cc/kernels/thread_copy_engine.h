#ifndef TFSWAP_KERNELS_THREAD_COPY_ENGINE_H_
#define TFSWAP_KERNELS_THREAD_COPY_ENGINE_H_

#include <string>
#include <utility>
#include <vector>

#include "far/loss_meter.h"
#include "kernels/copy_engine.h"
#include "kernels/worker.h"

namespace tfswap {

// Copies on threads of its own: one a direction, and one more each for the file, whose copies only
// wait. What a plan moves goes first come first served, and before lazy swap-ins, which go by the
// place of their readers in the step; those all go one after the other, wherever they come from: so
// none takes the memory that an earlier one needs.
class ThreadCopyEngine : public CopyEngine {
 public:
  explicit ThreadCopyEngine(DeviceAllocator* allocator) : CopyEngine(allocator) {}

  void Leave(const FarBufferPtr& buffer, Done done) override;
  int64_t BytesLeaving() const override { return bytes_leaving_.load(); }
  bool IsCopyingIn() const override { return copying_in_.load() > 0; }
  void EmulateLink(double bytes_per_s, int64_t latency_ns) override;
  std::string Hindrance() const override { return far()->Hindrance(); }
  HostPool* host_memory() override { return far()->host(); }
  FarStats FarUse() override { return far()->Stats(); }
  SpillStats FileUse() const override { return far()->FileStats(); }
  void ResetFarUse() override { far()->ResetStats(); }
  void SampleCodecs(std::vector<Codec> codecs) override { sampler()->SetCodecs(std::move(codecs)); }
  void Sample(const FarBuffer& buffer, const void* data) override;
  std::string CodecSamples() override { return sampler()->Text(); }

  // These are one for all CPUs.
  static FarMemory* far();
  static RatioSampler* sampler();
  static LossMeter* loss_meter();

 private:
  void EvictLocked(const FarBufferPtr& buffer, std::vector<tensorflow::Tensor>* given_up) override;
  void StartLeaving(const FarBufferPtr& buffer, Done done);
  void CopyOut(const FarBufferPtr& buffer, const Done& done);
  absl::Status Fill(tensorflow::Tensor* output, const FarBufferPtr& buffer) override;
  absl::Status CopyIn(tensorflow::Tensor* output, const FarBufferPtr& buffer);
  void DropFarCopy(FarCopy* copy) override { far()->Drop(copy); }
  Worker* FillerOf(const FarBuffer& buffer, int64_t place) override;
  // Of what crosses the link; the file has a link of its own.
  void HoldForLink(int64_t start_ns, const FarCopy& copy) const;

  Worker out_{"tfswap_out"};
  Worker file_out_{"tfswap_file_out"};
  Worker file_in_{"tfswap_file_in"};
  std::atomic<int64_t> bytes_leaving_{0};
  std::atomic<int> copying_in_{0};
  std::atomic<double> link_ns_per_byte_{0};
  std::atomic<int64_t> link_latency_ns_{0};
};

}  // namespace tfswap

#endif  // TFSWAP_KERNELS_THREAD_COPY_ENGINE_H_
