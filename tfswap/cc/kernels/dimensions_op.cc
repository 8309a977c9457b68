// _Dimensions: a shape that is not constant-folded.
//
// When TensorFlow instantiates a function it computes ops on constants once and keeps the results.
// A Fill with dimensions from this op is computed in each step instead.

#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow/core/framework/tensor_shape.h"

namespace tfswap {
namespace {

using ::tensorflow::OpKernel;
using ::tensorflow::OpKernelConstruction;
using ::tensorflow::OpKernelContext;
using ::tensorflow::Tensor;
using ::tensorflow::TensorShape;

REGISTER_OP("_Dimensions")
    .Output("dimensions: int32")
    .Attr("shape: shape")
    .SetIsStateful()
    .SetShapeFn([](::tensorflow::shape_inference::InferenceContext* c) {
      TensorShape shape;
      TF_RETURN_IF_ERROR(c->GetAttr("shape", &shape));
      c->set_output(0, c->Vector(shape.dims()));
      return absl::OkStatus();
    })
    .Doc(R"doc(
A fixed shape, as a vector. Inserted by tfswap.
)doc");

class DimensionsOp : public OpKernel {
 public:
  explicit DimensionsOp(OpKernelConstruction* construction) : OpKernel(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("shape", &shape_));
  }

  void Compute(OpKernelContext* context) override {
    Tensor* dimensions = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, TensorShape({shape_.dims()}), &dimensions));
    auto values = dimensions->vec<int32_t>();
    for (int i = 0; i < shape_.dims(); ++i) values(i) = static_cast<int32_t>(shape_.dim_size(i));
  }

  bool IsExpensive() override { return false; }

 private:
  TensorShape shape_;
};

REGISTER_KERNEL_BUILDER(Name("_Dimensions").Device(tensorflow::DEVICE_CPU), DimensionsOp);
REGISTER_KERNEL_BUILDER(Name("_Dimensions").Device(tensorflow::DEVICE_GPU).HostMemory("dimensions"),
                        DimensionsOp);

}  // namespace
}  // namespace tfswap
