#ifndef TFSWAP_ALLOCATOR_KERNEL_GUARD_H_
#define TFSWAP_ALLOCATOR_KERNEL_GUARD_H_

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_var.h"

namespace tfswap {

// Sees each kernel before and after it runs: somebody who may have taken away what it reads.
class KernelGuard {
 public:
  using Held = std::vector<tensorflow::core::RefCountPtr<tensorflow::Var>>;

  virtual ~KernelGuard() = default;
  // Whether it has to be told of this kernel.
  virtual bool Concerns(const tensorflow::OpKernel& kernel) const = 0;
  // Has what the kernel reads on the device. What is added to `held` stays there until After(),
  // which is to be called whatever this answers.
  virtual absl::Status Before(tensorflow::OpKernelContext* context, Held* held) = 0;
  virtual void After(const Held& held) = 0;
};

// Runs a kernel, behind a guard if there is one that it concerns.
template <typename Run>
void RunGuarded(KernelGuard* guard, const tensorflow::OpKernel& kernel,
                tensorflow::OpKernelContext* context, const Run& run) {
  if (guard == nullptr || !guard->Concerns(kernel)) return run();
  KernelGuard::Held held;
  const absl::Status status = guard->Before(context, &held);
  if (status.ok()) {
    run();
  } else {
    context->SetStatus(status);
  }
  guard->After(held);
}

// The same of one that has ended when `done` is called: `run` is given the `done` to call instead.
template <typename Run>
void RunGuardedAsync(KernelGuard* guard, const tensorflow::OpKernel& kernel,
                     tensorflow::OpKernelContext* context, std::function<void()> done,
                     const Run& run) {
  if (guard == nullptr || !guard->Concerns(kernel)) return run(std::move(done));
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

}  // namespace tfswap

#endif  // TFSWAP_ALLOCATOR_KERNEL_GUARD_H_
