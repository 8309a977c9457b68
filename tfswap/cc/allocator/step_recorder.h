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

// Return the kind of an allocation from TensorFlow's annotation.
BufferKind KindOfRegion(absl::string_view region_type);

// Records what kernels and allocators do while it is on. When off, it costs one relaxed load per
// kernel. Thread-safe.
//
// Each thread writes only addresses and times, to its own shard, so that executor threads share no
// lock and no cache line. Stop() finds the buffer that was at an address at a time.
class StepRecorder {
 public:
  StepRecorder();
  ~StepRecorder();

  bool on() const { return on_.load(std::memory_order_relaxed); }

  // Record the times of this GPU clock from now on. Host times say only when work was enqueued.
  void SetGpuClock(GpuClock* clock) { clock_.store(clock); }

  // Start the GPU clock, if there is one. Call it before Start(), without any lock. Without it a
  // recording has host times, in whose order memory is allocated.
  void StartClock();
  void Start(int64_t resident_bytes);
  StepTrace Stop();

  // Called by the allocator: Present() before anything else runs, Allocated() before the block is
  // returned, Freed() before its memory can be allocated again.
  void Present(int64_t bytes, const std::string& op, BufferKind kind, const void* ptr);
  void Allocated(int64_t bytes, const std::string& op, BufferKind kind, const void* ptr);
  void Freed(const void* ptr);

  // Called by the copy engine, for elements of lists that leave on demand. The trace shows each as
  // one buffer, which stayed until nothing could read it any more.
  enum class ElementEvent { kLeaves, kReturned, kEnds };
  // `element`: a number of the element; `tensor`: the one that leaves, or a copy that returned.
  void Element(int64_t element, ElementEvent event, const tensorflow::Tensor& tensor);

  struct Shard;
  // A recorded op, which may end on another thread. Converts to false if it is not recorded.
  struct Op {
    Shard* shard = nullptr;
    size_t index = 0;
    int64_t recording = 0;
    explicit operator bool() const { return shard != nullptr; }
  };

  // Called by the device: OpBegins() before the kernel, which may release its inputs, and OpEnds()
  // after it, before its outputs are forwarded. `wait_ns`: how long the host waited for memory.
  Op OpBegins(const tensorflow::OpKernel& kernel, tensorflow::OpKernelContext* context);
  void OpEnds(const Op& op, tensorflow::OpKernelContext* context, int64_t wait_ns);

  // Begin an op that ends when `done` is called. Return the `done` to call instead.
  std::function<void()> OpBeginsAsync(const tensorflow::OpKernel& kernel,
                                      tensorflow::OpKernelContext* context,
                                      std::function<void()> done);

 private:
  Shard* ThisThreads();
  void AddBuffer(int64_t bytes, int64_t alloc_ns, const std::string& op, BufferKind kind,
                 const void* ptr);

  std::atomic<bool> on_{false};
  std::atomic<GpuClock*> clock_{nullptr};
  std::mutex mu_;  // guards all below; each shard has its own lock
  int64_t recording_ = 0;
  int64_t start_ns_ = 0;
  int64_t resident_bytes_ = 0;
  std::vector<std::unique_ptr<Shard>> shards_;
};

}  // namespace tfswap

#endif  // TFSWAP_CC_ALLOCATOR_STEP_RECORDER_H_
