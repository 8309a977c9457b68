// An op that writes zeros, in the memory of its input if it holds the last reference to that.

#define GOOGLE_CUDA 1
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "xla/stream_executor/stream.h"

namespace {

REGISTER_OP("TfswapTestOverwrite")
    .Input("x: float")
    .Output("zeros: float")
    .SetIsStateful()
    .SetShapeFn(::tensorflow::shape_inference::UnchangedShape);

class OverwriteOp : public tensorflow::OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(tensorflow::OpKernelContext* context) override {
    tensorflow::Tensor* zeros = nullptr;
    OP_REQUIRES_OK(context, context->forward_input_or_allocate_output(
                                {0}, 0, context->input(0).shape(), &zeros));
    stream_executor::DeviceMemoryBase memory(zeros->data(), zeros->TotalBytes());
    OP_REQUIRES_OK(context,
                   context->op_device_context()->stream()->MemZero(&memory, memory.size()));
  }
};

REGISTER_KERNEL_BUILDER(Name("TfswapTestOverwrite").Device(tensorflow::DEVICE_GPU), OverwriteOp);

}  // namespace
