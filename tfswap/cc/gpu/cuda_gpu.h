#ifndef TFSWAP_CC_GPU_CUDA_GPU_H_
#define TFSWAP_CC_GPU_CUDA_GPU_H_

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_set>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/gpu/gpu.h"
#include "core/memory/host_pool.h"
#include "gpu/cuda_clock.h"
#include "gpu/cuda_codecs.h"
#include "gpu/cuda_driver.h"
#include "gpu/nvcomp_codec.h"

namespace tfswap {

// The folder of the encoders that run on a GPU: the one above libtfswap_gpu.
std::string FolderOfKernels();

// A GPU: TensorFlow's compute stream, and tfswap's streams for the other queues. Never destroyed.
class CudaGpu : public Gpu {
 public:
  // `compute` is the platform handle of TensorFlow's stream.
  static absl::StatusOr<CudaGpu*> Make(void* compute);

  Event Record(Queue queue) override;
  void Wait(Queue queue, Event event) override;
  bool HasHappened(Event event) override;
  void Recycle(Event event) override;
  bool Move(Queue queue, const Transfer& transfer) override;

  // Block until all commands of the queue have ended. For measurements, not for steps.
  void Finish(Queue queue);
  // Block until all queues are idle.
  void FinishAll();
  // Measure how long each queue takes to run its transfer `times` times, all queues concurrently.
  struct Timed {
    Queue queue;
    Transfer transfer;
    int64_t ns = 0;
  };
  absl::Status Time(std::vector<Timed>* timed, int times);

  // Return name and memory of the GPU.
  std::string Name() const;
  // Return the minimum number of blocks that run concurrently.
  int Processors() const;
  // Loads the codecs on first use; returns an error if there are none.
  absl::StatusOr<CudaCodecs*> Codecs();
  // Set a codec of nvCOMP, or remove it with null; the queues must have finished using the previous
  // one.
  void SetNvcomp(GpuCodec codec, std::shared_ptr<NvcompCodec> own);
  std::shared_ptr<NvcompCodec> Nvcomp(GpuCodec codec) const;
  // Return whether the codec is available.
  bool CanUse(GpuCodec codec);
  CudaDriver::Stream stream(Queue queue) const { return streams_[static_cast<int>(queue)]; }
  // Set the launch configuration of a codec.
  void SetLaunch(GpuCodec codec, const CodecLaunch& launch);
  CodecLaunch LaunchOf(GpuCodec codec) const;
  // The clock of the compute stream.
  CudaClock* clock() { return &clock_; }
  // Take pinned host memory, which copies and kernels access directly, near the GPU: pages that
  // several threads touch and that are then registered, which is faster than the driver's own
  // allocation; that is used where registering is refused.
  HostPool::Source::Taken TakePinned(int64_t bytes);
  // Give it back; no command may access it any more.
  void GivePinnedBack(void* begin, int64_t bytes);

  // The first error of any call, of a wait, too: after one, commands may run too early, so all
  // later moves and kernels fail.
  absl::Status status() const;
  bool failed() const { return failed_.load(std::memory_order_acquire); }

 private:
  // Makes the GPU's context current for the thread within a scope; a failure is an error of the
  // GPU.
  class Current {
   public:
    explicit Current(CudaGpu* gpu) : context_(gpu->driver_, gpu->context_) {
      gpu->Check("making its context current", context_.pushed());
    }

   private:
    CudaContext context_;
  };

  CudaGpu(const CudaDriver* driver, CudaDriver::Context context, CudaDriver::Stream compute)
      : driver_(driver),
        context_(context),
        streams_{compute},
        clock_(driver, context, compute, [this](const char* doing, CudaDriver::Result result) {
          return Check(doing, result);
        }) {}

  bool Copy(Queue queue, const Transfer& transfer);
  absl::Status EncodeOrDecode(Queue queue, const Transfer& transfer);
  // Store the first error; return whether the call succeeded.
  bool Check(const char* doing, CudaDriver::Result result);
  void Fail(std::string error);
  // Return the NUMA node of the GPU; -1 if it is unknown.
  int NumaNode() const;

  const CudaDriver* const driver_;
  const CudaDriver::Context context_;
  std::array<CudaDriver::Stream, kQueues> streams_;
  CudaClock clock_;
  int numa_node_ = -1;
  mutable std::mutex mu_;  // guards all below
  std::vector<CudaDriver::Event> idle_events_;
  bool codecs_loaded_ = false;
  absl::StatusOr<std::unique_ptr<CudaCodecs>> codecs_{nullptr};
  std::array<std::shared_ptr<NvcompCodec>, kGpuCodecs - kGpuKernels> nvcomp_;
  std::array<CodecLaunch, kGpuCodecs> launches_;
  std::unordered_set<void*> from_driver_;  // pinned memory that the driver allocated
  std::string error_;
  std::atomic<bool> failed_{false};  // whether there is an error
};

}  // namespace tfswap

#endif  // TFSWAP_CC_GPU_CUDA_GPU_H_
