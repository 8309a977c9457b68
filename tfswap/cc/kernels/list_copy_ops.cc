// Ops that let the elements of a TensorList leave the device: the list holds handles instead.
//
// The pass inserts them (grappler/rewrite/loop_lists.h). _CopyFromHost brings an element back.

#include <chrono>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/far_handle.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow/core/framework/variant.h"

namespace tfswap {
namespace {

using ::tensorflow::OpKernel;
using ::tensorflow::OpKernelConstruction;
using ::tensorflow::OpKernelContext;
using ::tensorflow::Tensor;
using ::tensorflow::TensorShape;
using ::tensorflow::Variant;
using ::tensorflow::shape_inference::InferenceContext;

REGISTER_OP("_ElementToHost")
    .Input("tensor: T")
    .Output("handle: variant")
    .Attr("T: type")
    .Attr("next_use: int = 0")
    .Attr("order: int = 0")
    .SetIsStateful()
    .SetShapeFn(::tensorflow::shape_inference::ScalarShape)
    .Doc(R"doc(
Returns a handle to a tensor, which stays on the device until its memory is needed. Inserted by
tfswap.

next_use: position of the next access in the step.
order: whether that access follows the iterations of its loop (1), or goes back through them (-1).
)doc");

REGISTER_OP("_RowsToHost")
    .Input("tensor: T")
    .Output("handles: variant")
    .Attr("T: type")
    .Attr("next_use: int = 0")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* context) {
      context->set_output(0, context->Vector(InferenceContext::kUnknownDim));
      return absl::OkStatus();
    })
    .Doc(R"doc(
Copies each row of a tensor, and returns a handle to each. Inserted by tfswap.

next_use: position of the next access in the step, which takes the rows one after the other.
)doc");

REGISTER_OP("_StackFromHost")
    .Input("handles: variant")
    .Input("element_shape: int32")
    .Output("tensor: T")
    .Attr("T: type")
    .SetIsStateful()
    .SetShapeFn(::tensorflow::shape_inference::UnknownShape)
    .Doc(R"doc(
Stacks the tensors of handles, wherever they are. Inserted by tfswap.

element_shape: shape of the tensors, for the rows that have none, which are 0; may be partly unknown.
)doc");

REGISTER_OP("_AddToElement")
    .Input("element: variant")
    .Input("tensor: T")
    .Output("handle: variant")
    .Attr("T: {float, double, half, bfloat16}")
    .Attr("next_use: int = 0")
    .Attr("order: int = 0")
    .SetIsStateful()
    .SetShapeFn(::tensorflow::shape_inference::ScalarShape)
    .Doc(R"doc(
Returns a handle to the sum of a tensor and that of a handle, 0 if there is none. Inserted by tfswap.

next_use, order: as of _ElementToHost.
)doc");

REGISTER_OP("_ShapeOfCopy")
    .Input("handle: variant")
    .Output("shape: shape_type")
    .Attr("shape_type: {int32, int64}")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* context) {
      context->set_output(0, context->Vector(InferenceContext::kUnknownDim));
      return absl::OkStatus();
    })
    .Doc(R"doc(
Returns the shape of the tensor of a handle. Inserted by tfswap.
)doc");

// Return the buffer of a handle; null for an element that was never set.
FarBufferPtr BufferOf(const Variant& handle) {
  const FarHandle* found = handle.get<FarHandle>();
  return found == nullptr ? nullptr : found->buffer;
}

// Read an element into a tensor of its size.
absl::Status Read(CopyEngine* engine, const FarBufferPtr& buffer, Tensor* output) {
  absl::Status status;
  while (!engine->ReadElement(buffer, output, &status)) {
    std::this_thread::sleep_for(std::chrono::microseconds(100));  // until it has left
  }
  return status;
}

class ElementToHostOp : public OpKernel {
 public:
  explicit ElementToHostOp(OpKernelConstruction* construction) : OpKernel(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("next_use", &next_use_));
    OP_REQUIRES_OK(construction, construction->GetAttr("order", &order_));
  }

  bool IsExpensive() override { return false; }

  void Compute(OpKernelContext* context) override {
    CopyEngine* engine = EngineOf(context);
    if (engine != nullptr) Return(context, engine, context->input(0));
  }

 protected:
  void Return(OpKernelContext* context, CopyEngine* engine, const Tensor& tensor) const {
    Tensor* handle = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, TensorShape({}), &handle));
    handle->scalar<Variant>()() = FarHandle{
        engine->HoldElement(std::string(name_view()), tensor, PlaceOf(next_use_, order_, context))};
  }

 private:
  int64_t next_use_, order_;
};

template <typename T>
class AddToElementOp : public ElementToHostOp {
 public:
  using ElementToHostOp::ElementToHostOp;

  void Compute(OpKernelContext* context) override {
    CopyEngine* engine = EngineOf(context);
    if (engine == nullptr) return;
    const FarBufferPtr before = BufferOf(context->input(0).scalar<Variant>()());
    const Tensor& tensor = context->input(1);
    Tensor sum;
    OP_REQUIRES_OK(context, context->allocate_temp(tensor.dtype(), tensor.shape(), &sum));
    if (before == nullptr) {
      sum.flat<T>() = tensor.flat<T>() + tensor.flat<T>().constant(T(0));  // -0 becomes 0
    } else {
      OP_REQUIRES(context, before->shape == tensor.shape() && before->dtype == tensor.dtype(),
                  absl::InvalidArgumentError("Inputs to operation AddN must have the same size"));
      OP_REQUIRES_OK(context, Read(engine, before, &sum));
      sum.flat<T>() += tensor.flat<T>();
    }
    Return(context, engine, sum);
  }
};

class RowsToHostOp : public OpKernel {
 public:
  explicit RowsToHostOp(OpKernelConstruction* construction) : OpKernel(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("next_use", &next_use_));
  }

  void Compute(OpKernelContext* context) override {
    CopyEngine* engine = EngineOf(context);
    if (engine == nullptr) return;
    const Tensor& tensor = context->input(0);
    OP_REQUIRES(
        context, tensor.dims() > 0,
        absl::InvalidArgumentError(absl::StrCat("Tensor must be at least a vector, but saw shape: ",
                                                tensor.shape().DebugString())));
    const int64_t count = tensor.dim_size(0);
    Tensor* handles = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, TensorShape({count}), &handles));
    TensorShape shape = tensor.shape();
    shape.RemoveDim(0);
    const int64_t bytes = count > 0 ? tensor.TotalBytes() / count : 0;
    const char* data = static_cast<const char*>(tensor.data());
    for (int64_t i = 0; i < count; ++i) {
      Tensor row;
      OP_REQUIRES_OK(context, context->allocate_temp(tensor.dtype(), shape, &row));
      if (bytes > 0) std::memcpy(row.data(), data + i * bytes, bytes);
      handles->vec<Variant>()(i) =
          FarHandle{engine->HoldElement(std::string(name_view()), row, PlaceOf(next_use_, 1, i))};
    }
  }

 private:
  int64_t next_use_;
};

class StackFromHostOp : public OpKernel {
 public:
  explicit StackFromHostOp(OpKernelConstruction* construction) : OpKernel(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("T", &dtype_));
  }

  void Compute(OpKernelContext* context) override {
    CopyEngine* engine = EngineOf(context);
    if (engine == nullptr) return;
    const auto handles = context->input(0).vec<Variant>();
    TensorShape shape;
    OP_REQUIRES_OK(context, ElementShape(context, &shape));
    const int64_t bytes = shape.num_elements() * DataTypeSize(dtype_);
    shape.InsertDim(0, handles.size());
    Tensor* output = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, shape, &output));
    if (bytes == 0) return;
    for (int64_t i = 0; i < handles.size(); ++i) {
      Tensor row = output->Slice(i, i + 1);
      const FarBufferPtr buffer = BufferOf(handles(i));
      if (buffer == nullptr) {
        std::memset(row.data(), 0, bytes);
        continue;
      }
      OP_REQUIRES_OK(context, Read(engine, buffer, &row));
    }
  }

 private:
  // Return the shape that all elements have.
  absl::Status ElementShape(OpKernelContext* context, TensorShape* shape) const {
    const auto handles = context->input(0).vec<Variant>();
    tensorflow::PartialTensorShape given;
    const Tensor& dimensions = context->input(1);
    if (dimensions.dims() > 0) {  // a scalar, -1, says nothing
      const auto values = dimensions.vec<int32_t>();
      TF_RETURN_IF_ERROR(tensorflow::PartialTensorShape::MakePartialShape(
          values.data(), static_cast<int>(values.size()), &given));
    }
    for (int64_t i = 0; i < handles.size(); ++i) {
      const FarBufferPtr buffer = BufferOf(handles(i));
      if (buffer == nullptr) continue;
      tensorflow::PartialTensorShape merged;
      TF_RETURN_IF_ERROR(given.MergeWith(buffer->shape, &merged));
      given = merged;
      if (buffer->dtype != dtype_) {
        return absl::InvalidArgumentError(absl::StrCat("tfswap: '", name_view(), "' wants ",
                                                       DataTypeString(dtype_), " but a list holds ",
                                                       DataTypeString(buffer->dtype)));
      }
    }
    if (given.AsTensorShape(shape)) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat("Tried to stack list with non-fully-defined ",
                                                   "element_shape: ", given.DebugString()));
  }

  tensorflow::DataType dtype_;
};

template <typename Size>
class ShapeOfCopyOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  bool IsExpensive() override { return false; }

  void Compute(OpKernelContext* context) override {
    const FarBufferPtr buffer = BufferOf(context->input(0).scalar<Variant>()());
    OP_REQUIRES(context, buffer != nullptr,
                absl::InvalidArgumentError(
                    absl::StrCat("tfswap: input 0 of '", name_view(), "' is not a handle")));
    Tensor* shape = nullptr;
    OP_REQUIRES_OK(context,
                   context->allocate_output(0, TensorShape({buffer->shape.dims()}), &shape));
    for (int i = 0; i < buffer->shape.dims(); ++i) {
      shape->vec<Size>()(i) = static_cast<Size>(buffer->shape.dim_size(i));
    }
  }
};

REGISTER_KERNEL_BUILDER(Name("_ElementToHost").Device(tensorflow::DEVICE_CPU), ElementToHostOp);
#define TFSWAP_ADD_TO_ELEMENT(T)                                                   \
  REGISTER_KERNEL_BUILDER(                                                         \
      Name("_AddToElement").Device(tensorflow::DEVICE_CPU).TypeConstraint<T>("T"), \
      AddToElementOp<T>)
TFSWAP_ADD_TO_ELEMENT(float);
TFSWAP_ADD_TO_ELEMENT(double);
TFSWAP_ADD_TO_ELEMENT(Eigen::half);
TFSWAP_ADD_TO_ELEMENT(tensorflow::bfloat16);
#undef TFSWAP_ADD_TO_ELEMENT
REGISTER_KERNEL_BUILDER(Name("_RowsToHost").Device(tensorflow::DEVICE_CPU), RowsToHostOp);
REGISTER_KERNEL_BUILDER(Name("_StackFromHost").Device(tensorflow::DEVICE_CPU), StackFromHostOp);
REGISTER_KERNEL_BUILDER(
    Name("_ShapeOfCopy").Device(tensorflow::DEVICE_CPU).TypeConstraint<int32_t>("shape_type"),
    ShapeOfCopyOp<int32_t>);
REGISTER_KERNEL_BUILDER(
    Name("_ShapeOfCopy").Device(tensorflow::DEVICE_CPU).TypeConstraint<int64_t>("shape_type"),
    ShapeOfCopyOp<int64_t>);

}  // namespace
}  // namespace tfswap
