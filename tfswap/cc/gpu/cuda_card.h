#ifndef TFSWAP_GPU_CUDA_CARD_H_
#define TFSWAP_GPU_CUDA_CARD_H_

#include <array>
#include <atomic>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/card.h"
#include "gpu/cuda_clock.h"
#include "gpu/cuda_driver.h"

namespace tfswap {

// One GPU: TensorFlow's compute stream, and a stream of ours for each direction. Lives as long as
// the process.
class CudaCard : public Card {
 public:
  // `compute`: TensorFlow's stream, as the platform's handle.
  static absl::StatusOr<CudaCard*> Make(void* compute);

  Event Record(Queue queue) override;
  void Wait(Queue queue, Event event) override;
  bool HasHappened(Event event) override;
  void Recycle(Event event) override;
  bool Copy(Queue queue, void* to, const void* from, int64_t bytes) override;

  // The host waits until all that the queue was given has ended. For checks, never in a step.
  void Finish(Queue queue);
  // How long a queue takes for `copies` copies, each of `bytes`; of several at once, each one's.
  struct Transfer {
    Queue queue;
    void* to;
    const void* from;
    int64_t ns = 0;
  };
  absl::Status Time(std::vector<Transfer>* transfers, int64_t bytes, int copies);
  // Of the compute stream.
  CudaClock* clock() { return &clock_; }
  // Host memory that copies read and write without a detour; at most once a block.
  absl::Status Pin(void* begin, int64_t bytes);
  void Unpin(void* begin);

  // The first thing that went wrong; the card is of no use any more.
  absl::Status status() const;

 private:
  CudaCard(const CudaDriver* driver, CudaDriver::Context context, CudaDriver::Stream compute)
      : driver_(driver),
        context_(context),
        streams_{compute, nullptr, nullptr},
        clock_(driver, context, compute) {}

  // Keeps the first error; whether there was none.
  bool Check(const char* doing, CudaDriver::Result result);
  CudaDriver::Stream stream(Queue queue) const { return streams_[static_cast<int>(queue)]; }

  const CudaDriver* const driver_;
  const CudaDriver::Context context_;
  std::array<CudaDriver::Stream, kQueues> streams_;
  CudaClock clock_;
  mutable std::mutex mu_;  // of all below
  std::vector<CudaDriver::Event> idle_events_;
  std::string error_;
};

}  // namespace tfswap

#endif  // TFSWAP_GPU_CUDA_CARD_H_
