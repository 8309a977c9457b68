#ifndef TFSWAP_CC_ALLOCATOR_KERNEL_GUARD_H_
#define TFSWAP_CC_ALLOCATOR_KERNEL_GUARD_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "allocator/variable_inputs.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_var.h"

namespace tfswap {

// Is called before and after each kernel that uses variables. Implemented by StreamedVariables,
// which may have swapped out the values that the kernel reads.
class KernelGuard {
 public:
  using Held = std::vector<tensorflow::core::RefCountPtr<tensorflow::Var>>;

  virtual ~KernelGuard() = default;
  // Make the values that the kernel reads resident on the device. Those added to `held` stay
  // resident until After(), which must be called even if this returns an error.
  virtual absl::Status Before(tensorflow::OpKernelContext* context, Held* held) = 0;
  virtual void After(const Held& held) = 0;
  // Return the bytes of the values that are not on the device.
  virtual int64_t BytesAway() = 0;
};

// Runs kernels through the guard, if there is one.
class GuardPost {
 public:
  // Set or remove (null) the guard. Setting it waits for the kernels that started without it, so
  // that no value that they are about to read is swapped out.
  void Set(KernelGuard* guard) {
    guard_.store(guard);
    if (guard == nullptr) return;
    // A kernel that is still running by then has already read its values.
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(2);
    while (unguarded_.load() > 0 && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  }

  int64_t BytesAway() const {
    KernelGuard* guard = guard_.load();
    return guard == nullptr ? 0 : guard->BytesAway();
  }

  // Run a kernel.
  template <typename Run>
  void Pass(const tensorflow::OpKernel& kernel, tensorflow::OpKernelContext* context,
            const Run& run) {
    if (!UsesVariables(kernel, context)) return run();
    KernelGuard* guard = GuardOrCount();
    if (guard == nullptr) {
      run();
      unguarded_.fetch_sub(1);
      return;
    }
    KernelGuard::Held held;
    const absl::Status status = guard->Before(context, &held);
    if (status.ok()) {
      run();
    } else {
      context->SetStatus(status);
    }
    guard->After(held);
  }

  // Run an asynchronous kernel, which ends when `done` is called. `run` gets the `done` to call
  // instead.
  template <typename Run>
  void PassAsync(const tensorflow::OpKernel& kernel, tensorflow::OpKernelContext* context,
                 std::function<void()> done, const Run& run) {
    if (!UsesVariables(kernel, context)) return run(std::move(done));
    KernelGuard* guard = GuardOrCount();
    if (guard == nullptr) {
      return run([this, done = std::move(done)] {
        unguarded_.fetch_sub(1);
        done();
      });
    }
    auto held = std::make_shared<KernelGuard::Held>();
    const absl::Status status = guard->Before(context, held.get());
    auto after = [guard, held, done = std::move(done)] {
      guard->After(*held);
      done();
    };
    if (status.ok()) return run(std::move(after));
    context->SetStatus(status);
    after();
  }

 private:
  // Return the guard. If it is null, the kernel is counted as unguarded.
  KernelGuard* GuardOrCount() {
    unguarded_.fetch_add(1);
    KernelGuard* guard = guard_.load();
    if (guard != nullptr) unguarded_.fetch_sub(1);
    return guard;
  }

  std::atomic<KernelGuard*> guard_{nullptr};
  std::atomic<int> unguarded_{0};
};

}  // namespace tfswap

#endif  // TFSWAP_CC_ALLOCATOR_KERNEL_GUARD_H_
