#ifndef TFSWAP_TESTS_RACES_ENGINE_RIG_H_
#define TFSWAP_TESTS_RACES_ENGINE_RIG_H_

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "device/swap_device.h"
#include "kernels/copy_engine.h"
#include "tensorflow/core/framework/cancellation.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace races {

// An event that happens once.
class Event {
 public:
  void Notify() {
    std::lock_guard<std::mutex> lock(mu_);
    happened_ = true;
    is_there_.notify_all();
  }
  void Wait() {
    std::unique_lock<std::mutex> lock(mu_);
    is_there_.wait(lock, [this] { return happened_; });
  }

 private:
  std::mutex mu_;
  std::condition_variable is_there_;
  bool happened_ = false;
};

// The kind of a tensor's swap-out.
struct Swap {
  bool lazy = false;
  int returns = 1;
  int64_t next_use = 0;
  std::string tier = "host";
  std::string codec;
  int threads = 1;
};

// One run of a kernel on a device of tfswap, as in TensorFlow's executor: inputs live until the run
// is destroyed. `cancellation` may be null.
class OpRun {
 public:
  OpRun(tensorflow::Device* device, tensorflow::OpKernel* kernel,
        std::vector<tensorflow::Tensor> inputs,
        tensorflow::CancellationManager* cancellation = nullptr);

  // `done` may be called on another thread, or before this returns.
  void Start(std::function<void()> done);
  // Start it, and wait until it is done.
  void Run();
  absl::Status status() const { return context_->status(); }
  // Return its output 0; null if there is none.
  tensorflow::Tensor TakeOutput();

 private:
  tensorflow::Device* const device_;
  std::vector<tensorflow::Tensor> inputs_;
  std::vector<tensorflow::TensorValue> values_;
  tensorflow::AllocatorAttributes attributes_;
  tensorflow::OpKernelContext::Params params_;
  std::unique_ptr<tensorflow::OpKernelContext> context_;
};

// A CPU device of tfswap with its allocator, its copy engine, far memory, and the kernels of
// swaps.
class Rig {
 public:
  Rig();

  tensorflow::Device* device() { return device_.get(); }
  tfswap::DeviceAllocator* allocator() { return allocator_; }
  tfswap::CopyEngine* engine() { return engine_; }

  // Return a kernel, created at the first call. `node` describes the kernel that `key` names.
  tensorflow::OpKernel* Kernel(const std::string& key,
                               const std::function<tensorflow::NodeDef()>& node);
  tensorflow::OpKernel* Out(const Swap& swap);
  tensorflow::OpKernel* In(int64_t next_use, bool lazy);

  // Make a tensor of floats that identify the owner; a tensor without memory if there is none.
  tensorflow::Tensor Make(int64_t bytes, uint32_t owner);
  // Make a tensor and swap it out. Return the handle once it is in far memory or evictable; an
  // empty tensor if there was no memory for it.
  tensorflow::Tensor SwapOut(const Swap& swap, int64_t bytes, uint32_t owner);
  // Swap a tensor in. Return "" if it is the owner's, was cancelled or had no memory to return to
  // (then `*came` is false), else the error.
  std::string SwapIn(const tensorflow::Tensor& handle, uint32_t owner, bool* came = nullptr,
                     tensorflow::CancellationManager* cancellation = nullptr, int64_t next_use = 0,
                     bool lazy = false);
  // Run a kernel that needs that much memory for a while, and call `meanwhile` with it. Return
  // whether there was any.
  bool Compute(int64_t bytes, const std::function<void(void*)>& meanwhile);

  // Return what is left without tensors and handles: "" or a description.
  std::string Leftovers();

 private:
  tfswap::DeviceAllocator* const allocator_;
  std::unique_ptr<tfswap::SwapDevice> device_;
  tfswap::CopyEngine* const engine_;
  std::mutex mu_;
  std::map<std::string, std::unique_ptr<tensorflow::OpKernel>> kernels_;
};

}  // namespace races

#endif  // TFSWAP_TESTS_RACES_ENGINE_RIG_H_
