#ifndef TFSWAP_CC_ALLOCATOR_XLA_LAUNCH_H_
#define TFSWAP_CC_ALLOCATOR_XLA_LAUNCH_H_

#include <memory>
#include <vector>

#include "allocator/variable_inputs.h"
#include "tensorflow/core/framework/allocator.h"
#include "tensorflow/core/framework/device.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tfswap {

// One run of a function that XLA compiled. It keeps variables intact if the run fails: XLA asks for
// all its memory before it computes, but by then it counts as a second owner of the variables that
// it would update in place, and if it gets no memory, it frees them (ExecutionInput of XLA's
// xla/service/executable.h; PopulateExecutionInputBuffer of TensorFlow's
// compiler/jit/xla_launch_util.cc). The variables would refer to freed memory.
//
// A run that uses collectives frees on another thread and is not covered.
class XlaLaunch {
 public:
  // Return the run of a kernel; null if the kernel is another one.
  static std::shared_ptr<XlaLaunch> Of(const tensorflow::AsyncOpKernel& kernel,
                                       tensorflow::OpKernelContext* context);

  // Keep the free of a block until the kernel ends. Return false if no variable had the block.
  bool Defer(void* ptr);
  // Free the deferred blocks, except, after a failure, those that variables still have. The kernel
  // has set its status and, if it failed, still locks the variables that it would have updated.
  void Ended(const tensorflow::OpKernelContext& context, tensorflow::Allocator* allocator);

 private:
  explicit XlaLaunch(tensorflow::OpKernelContext* context);

  const std::vector<VariableInput> variables_;
  std::vector<void*> blocks_;  // of the variables
  std::vector<void*> deferred_;
};

// Run an asynchronous kernel, as most compiled functions are that are called eagerly, and wait for
// its end.
void ComputeAndWait(tensorflow::Device* device, tensorflow::AsyncOpKernel* kernel,
                    tensorflow::OpKernelContext* context);

}  // namespace tfswap

#endif  // TFSWAP_CC_ALLOCATOR_XLA_LAUNCH_H_
