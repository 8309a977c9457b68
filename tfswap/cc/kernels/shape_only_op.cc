// _ShapeOnly: the shape of a tensor for kernels that read nothing else of it.

#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tfswap {
namespace {

using ::tensorflow::OpKernel;
using ::tensorflow::OpKernelConstruction;
using ::tensorflow::OpKernelContext;
using ::tensorflow::Tensor;

REGISTER_OP("_ShapeOnly")
    .Input("tensor: T")
    .Output("shape_only: T")
    .Attr("T: type")
    .SetIsStateful()
    .SetShapeFn(::tensorflow::shape_inference::UnchangedShape)
    .Doc(R"doc(
Returns a tensor of the same type and shape without memory. Inserted by tfswap.
)doc");

// A buffer that has no memory: reading it crashes.
class ShapeBuffer : public tensorflow::TensorBuffer {
 public:
  explicit ShapeBuffer(size_t size) : TensorBuffer(nullptr), size_(size) {}

  size_t size() const override { return size_; }
  TensorBuffer* root_buffer() override { return this; }
  bool GetAllocatedBytes(size_t* bytes) const override {
    *bytes = 0;
    return true;
  }
  void FillAllocationDescription(tensorflow::AllocationDescription*) const override {}
  bool OwnsMemory() const override { return false; }

 private:
  const size_t size_;
};

class ShapeOnlyOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  bool IsExpensive() override { return false; }

  void Compute(OpKernelContext* context) override {
    const Tensor& tensor = context->input(0);
    tensorflow::core::RefCountPtr<ShapeBuffer> none(new ShapeBuffer(tensor.TotalBytes()));
    context->set_output(0, Tensor(tensor.dtype(), tensor.shape(), none.get()));
  }
};

REGISTER_KERNEL_BUILDER(Name("_ShapeOnly").Device(tensorflow::DEVICE_CPU), ShapeOnlyOp);

}  // namespace
}  // namespace tfswap
