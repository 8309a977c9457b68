#ifndef TFSWAP_KERNELS_THREAD_COPY_ENGINE_H_
#define TFSWAP_KERNELS_THREAD_COPY_ENGINE_H_

#include <string>
#include <vector>

#include "kernels/copy_engine.h"
#include "kernels/worker.h"

namespace tfswap {

// Copies on threads of its own, one a direction. What a plan moves goes first come first served,
// and before lazy swap-ins, which go by the place of their readers in the step.
class ThreadCopyEngine : public CopyEngine {
 public:
  explicit ThreadCopyEngine(DeviceAllocator* allocator)
      : CopyEngine(allocator), out_("tfswap_out") {}

  void Leave(const FarBufferPtr& buffer, Done done) override;
  int64_t BytesLeaving() const override { return bytes_leaving_.load(); }
  bool IsCopyingIn() const override { return copying_in_.load() > 0; }
  void EmulateLink(double bytes_per_s, int64_t latency_ns) override;
  HostPool* far_memory() override { return host_pool(); }

  // Far memory is one for all devices.
  static HostPool* host_pool();

 private:
  void EvictLocked(const FarBufferPtr& buffer, std::vector<tensorflow::Tensor>* given_up) override;
  void StartLeaving(const FarBufferPtr& buffer, Done done);
  void CopyOut(const FarBufferPtr& buffer, const Done& done);
  absl::Status Fill(tensorflow::Tensor* output, const FarBufferPtr& buffer) override;
  absl::Status CopyIn(tensorflow::Tensor* output, const FarBufferPtr& buffer);
  void HoldForLink(int64_t start_ns, int64_t bytes) const;

  Worker out_;
  std::atomic<int64_t> bytes_leaving_{0};
  std::atomic<int> copying_in_{0};
  std::atomic<double> link_ns_per_byte_{0};
  std::atomic<int64_t> link_latency_ns_{0};
};

}  // namespace tfswap

#endif  // TFSWAP_KERNELS_THREAD_COPY_ENGINE_H_
