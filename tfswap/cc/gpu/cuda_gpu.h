#ifndef TFSWAP_CC_GPU_CUDA_GPU_H_
#define TFSWAP_CC_GPU_CUDA_GPU_H_

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/gpu/gpu.h"
#include "gpu/cuda_clock.h"
#include "gpu/cuda_codecs.h"
#include "gpu/cuda_driver.h"
#include "gpu/nvcomp_codec.h"

namespace tfswap {

// Kernels are beside libtfswap_gpu.
std::string FolderOfThisLibrary();

// One GPU: TensorFlow's compute stream, and streams of ours for the other queues. Lives as long as
// the process.
class CudaCard : public Gpu {
 public:
  // `compute`: TensorFlow's stream, as the platform's handle.
  static absl::StatusOr<CudaCard*> Make(void* compute);

  Event Record(Queue queue) override;
  void Wait(Queue queue, Event event) override;
  bool HasHappened(Event event) override;
  void Recycle(Event event) override;
  bool Move(Queue queue, const Transfer& transfer) override;

  // The host waits until all that the queue was given has ended. For checks, never in a step.
  void Finish(Queue queue);
  // All that all of them were given.
  void FinishAll();
  // How long a queue takes for `times` times the same; of several at once, each one's.
  struct Timed {
    Queue queue;
    Transfer transfer;
    int64_t ns = 0;
  };
  absl::Status Time(std::vector<Timed>* timed, int times);

  // Name and memory.
  std::string Name() const;
  // How many blocks of threads run at once, at the least.
  int Processors() const;
  // Loaded when they are first asked for; null and an error where there are none.
  absl::StatusOr<CudaCodecs*> Codecs();
  // One of nvCOMP's, or null; the queues have done all that one that was there was given.
  void SetNvcomp(GpuCodec codec, std::shared_ptr<NvcompCodec> own);
  std::shared_ptr<NvcompCodec> Nvcomp(GpuCodec codec) const;
  // Whether that can be encoded by now.
  bool Knows(GpuCodec codec);
  CudaDriver::Stream stream(Queue queue) const { return streams_[static_cast<int>(queue)]; }
  // How kernels of a codec are started from now on.
  void SetLaunch(GpuCodec codec, const CodecLaunch& launch);
  CodecLaunch LaunchOf(GpuCodec codec) const;
  // Of the compute stream.
  CudaClock* clock() { return &clock_; }
  // Host memory that copies read and write without a detour; at most once a block.
  absl::Status Pin(void* begin, int64_t bytes);
  void Unpin(void* begin);

  // The first thing that went wrong; the GPU is of no use any more.
  absl::Status status() const;

 private:
  CudaCard(const CudaDriver* driver, CudaDriver::Context context, CudaDriver::Stream compute)
      : driver_(driver), context_(context), streams_{compute}, clock_(driver, context, compute) {}

  bool Copy(Queue queue, const Transfer& transfer);
  absl::Status Recode(Queue queue, const Transfer& transfer);
  // Keeps the first error; whether there was none.
  bool Check(const char* doing, CudaDriver::Result result);

  const CudaDriver* const driver_;
  const CudaDriver::Context context_;
  std::array<CudaDriver::Stream, kQueues> streams_;
  CudaClock clock_;
  mutable std::mutex mu_;  // of all below
  std::vector<CudaDriver::Event> idle_events_;
  bool codecs_asked_for_ = false;
  absl::StatusOr<std::unique_ptr<CudaCodecs>> codecs_{nullptr};
  std::array<std::shared_ptr<NvcompCodec>, kCardCodecs - kCardKernels> nvcomp_;
  std::array<CodecLaunch, kCardCodecs> launches_;
  std::string error_;
};

}  // namespace tfswap

#endif  // TFSWAP_CC_GPU_CUDA_GPU_H_
