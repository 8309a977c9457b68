#ifndef TFSWAP_DEVICE_STEP_RECORDER_H_
#define TFSWAP_DEVICE_STEP_RECORDER_H_

#include <atomic>
#include <mutex>
#include <unordered_map>

#include "core/trace.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tfswap {

// Writes down what kernels and allocators do, while it is on. Off, it costs one relaxed load a
// kernel. Thread-safe.
class StepRecorder {
 public:
  bool on() const { return on_.load(std::memory_order_relaxed); }

  void Start(int64_t resident_bytes);
  StepTrace Stop();

  // The allocator's side. `op` is a text that lives as long as the recording.
  void Present(int64_t bytes, const std::string& op, BufferKind kind, const void* ptr);
  void Allocated(int64_t bytes, const std::string& op, BufferKind kind, const void* ptr);
  void Freed(const void* ptr);

  // The device's side: OpBegins() before the kernel (its inputs may be gone after it), OpEnds()
  // after. An op is a handle, -1 when nothing is recorded.
  int OpBegins(const tensorflow::OpKernel& kernel, tensorflow::OpKernelContext* context);
  void OpEnds(int op, tensorflow::OpKernelContext* context, int64_t wait_ns);

 private:
  void AddBuffer(int64_t bytes, int64_t alloc_ns, const std::string& op, BufferKind kind,
                 const void* ptr);
  void AddAccess(int op, int port, const tensorflow::Tensor& tensor);

  std::atomic<bool> on_{false};
  std::mutex mu_;
  int64_t recording_ = 0;  // counts Start() calls: an op that began in an older one is dropped
  StepTrace trace_;
  std::unique_ptr<NameTable> names_;
  std::unordered_map<const void*, int32_t> live_;  // address to index of the buffer there
};

}  // namespace tfswap

#endif  // TFSWAP_DEVICE_STEP_RECORDER_H_
