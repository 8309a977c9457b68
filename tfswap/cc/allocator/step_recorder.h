#ifndef TFSWAP_CC_ALLOCATOR_STEP_RECORDER_H_
#define TFSWAP_CC_ALLOCATOR_STEP_RECORDER_H_

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "core/gpu/gpu_clock.h"
#include "core/simulate/trace.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tfswap {

// What TensorFlow says an allocation is for.
BufferKind KindOfRegion(absl::string_view region_type);

// Writes down what kernels and allocators do, while it is on. Off, it costs one relaxed load a
// kernel. Thread-safe.
//
// Each thread writes to a shard of its own, addresses and times only; Stop() finds out which buffer
// was at an address at a time. So executor threads share no lock and no cache line.
class StepRecorder {
 public:
  StepRecorder();
  ~StepRecorder();

  bool on() const { return on_.load(std::memory_order_relaxed); }

  // Of a GPU, whose times recordings have from now on: those of the host say when it was told.
  void SetCardClock(GpuClock* clock) { clock_.store(clock); }

  // Before Start(), and without any lock: has a GPU's clock run, if there is one. Without it a
  // recording has the times of the host, in whose order memory is handed out.
  void StartClock();
  void Start(int64_t resident_bytes);
  StepTrace Stop();

  // The allocator's side: Present() before anything else runs, Allocated() before the block is
  // handed out, Freed() before its memory can be anybody else's.
  void Present(int64_t bytes, const std::string& op, BufferKind kind, const void* ptr);
  void Allocated(int64_t bytes, const std::string& op, BufferKind kind, const void* ptr);
  void Freed(const void* ptr);

  struct Shard;
  // A recorded op, which may end on another thread; false when nothing is recorded.
  struct Op {
    Shard* shard = nullptr;
    size_t index = 0;
    int64_t recording = 0;
    explicit operator bool() const { return shard != nullptr; }
  };

  // The device's side: OpBegins() before the kernel (its inputs may be gone after it), OpEnds()
  // after, before its outputs are passed on. `wait_ns`: of the host, for memory.
  Op OpBegins(const tensorflow::OpKernel& kernel, tensorflow::OpKernelContext* context);
  void OpEnds(const Op& op, tensorflow::OpKernelContext* context, int64_t wait_ns);

  // Of an op that ends when `done` is called: the `done` to call instead.
  std::function<void()> OpBeginsAsync(const tensorflow::OpKernel& kernel,
                                      tensorflow::OpKernelContext* context,
                                      std::function<void()> done);

 private:
  Shard* ThisThreads();
  void AddBuffer(int64_t bytes, int64_t alloc_ns, const std::string& op, BufferKind kind,
                 const void* ptr);

  std::atomic<bool> on_{false};
  std::atomic<GpuClock*> clock_{nullptr};
  std::mutex mu_;  // guards all below; a shard has a lock of its own
  int64_t recording_ = 0;
  int64_t start_ns_ = 0;
  int64_t resident_bytes_ = 0;
  std::vector<std::unique_ptr<Shard>> shards_;
};

}  // namespace tfswap

#endif  // TFSWAP_CC_ALLOCATOR_STEP_RECORDER_H_
