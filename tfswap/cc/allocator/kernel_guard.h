#ifndef TFSWAP_CC_ALLOCATOR_KERNEL_GUARD_H_
#define TFSWAP_CC_ALLOCATOR_KERNEL_GUARD_H_

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "allocator/variable_inputs.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_var.h"

namespace tfswap {

// Sees each kernel that uses variables before and after it runs: somebody who may have taken away
// what it reads.
class KernelGuard {
 public:
  using Held = std::vector<tensorflow::core::RefCountPtr<tensorflow::Var>>;

  virtual ~KernelGuard() = default;
  // Has what the kernel reads on the device. What is added to `held` stays there until After(),
  // which is to be called whatever this answers.
  virtual absl::Status Before(tensorflow::OpKernelContext* context, Held* held) = 0;
  virtual void After(const Held& held) = 0;
};

// Where kernels meet the guard, if there is one.
class GuardPost {
 public:
  // Null: kernels run unseen. Otherwise waits until those that began unseen have ended, so that
  // what is taken away from then on is nothing that they are about to look at.
  void Set(KernelGuard* guard) {
    guard_.store(guard);
    if (guard == nullptr) return;
    // One that has not ended by then has long read what it reads.
    const auto most = std::chrono::steady_clock::now() + std::chrono::seconds(2);
    while (unseen_.load() > 0 && std::chrono::steady_clock::now() < most) {
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  }

  // Runs a kernel.
  template <typename Run>
  void Pass(const tensorflow::OpKernel& kernel, tensorflow::OpKernelContext* context,
            const Run& run) {
    if (!UsesVariables(kernel) || !HasVariable(context)) return run();
    KernelGuard* guard = Meet();
    if (guard == nullptr) {
      run();
      unseen_.fetch_sub(1);
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

  // The same of one that has ended when `done` is called: `run` is given the `done` to call
  // instead.
  template <typename Run>
  void PassAsync(const tensorflow::OpKernel& kernel, tensorflow::OpKernelContext* context,
                 std::function<void()> done, const Run& run) {
    if (!UsesVariables(kernel) || !HasVariable(context)) return run(std::move(done));
    KernelGuard* guard = Meet();
    if (guard == nullptr) {
      return run([this, done = std::move(done)] {
        unseen_.fetch_sub(1);
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
  // The guard; null: there is none, and the kernel is counted as unseen.
  KernelGuard* Meet() {
    unseen_.fetch_add(1);
    KernelGuard* guard = guard_.load();
    if (guard != nullptr) unseen_.fetch_sub(1);
    return guard;
  }

  std::atomic<KernelGuard*> guard_{nullptr};
  std::atomic<int> unseen_{0};
};

}  // namespace tfswap

#endif  // TFSWAP_CC_ALLOCATOR_KERNEL_GUARD_H_
