#ifndef TFSWAP_ALLOCATOR_KERNEL_GUARD_H_
#define TFSWAP_ALLOCATOR_KERNEL_GUARD_H_

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

}  // namespace tfswap

#endif  // TFSWAP_ALLOCATOR_KERNEL_GUARD_H_
