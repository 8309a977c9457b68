// _GatherVariableRows: gathers rows of a variable where its value is, on the device or in far
// memory, so that an embedding table larger than the budget need not return for a batch.
//
// The pass puts it in place of a read whose value is only gathered from
// (grappler/rewrite/variable_rows.h). To planned swaps and evictions it is no use of the value.

#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/copy_engine.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow/core/util/util.h"

namespace tfswap {
namespace {

using ::tensorflow::OpKernel;
using ::tensorflow::OpKernelConstruction;
using ::tensorflow::OpKernelContext;
using ::tensorflow::Tensor;
using ::tensorflow::TensorShape;
using ::tensorflow::Var;
using ::tensorflow::shape_inference::InferenceContext;
using ::tensorflow::shape_inference::ShapeHandle;

REGISTER_OP("_GatherVariableRows")
    .Input("variable: resource")
    .Input("indices: Tindices")
    .Output("output: dtype")
    .Attr("dtype: type")
    .Attr("Tindices: {int32, int64}")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* context) {
      ShapeHandle rows = context->UnknownShape(), output;
      const auto* variable = context->input_handle_shapes_and_types(0);
      if (variable != nullptr && !variable->empty() && context->RankKnown((*variable)[0].shape)) {
        TF_RETURN_IF_ERROR(context->Subshape((*variable)[0].shape, 1, &rows));
      }
      TF_RETURN_IF_ERROR(context->Concatenate(context->input(1), rows, &output));
      context->set_output(0, output);
      return absl::OkStatus();
    })
    .Doc(R"doc(
ResourceGather without batch dimensions, for a value that may be in far memory. Inserted by tfswap.
)doc");

class GatherVariableRowsOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    auto* allocator =
        dynamic_cast<DeviceAllocator*>(context->get_allocator(tensorflow::AllocatorAttributes()));
    OP_REQUIRES(context, allocator != nullptr,
                absl::FailedPreconditionError(absl::StrCat(
                    "tfswap: device ", context->device()->name(), " does not swap variables")));
    tensorflow::core::RefCountPtr<Var> var;
    OP_REQUIRES_OK(context, LookupResource(context, HandleFromInput(context, 0), &var));
    StreamedVariables* variables = CopyEngine::For(allocator)->variables();
    const TensorShape table = variables->ShapeOf(var.get());
    OP_REQUIRES(context, table.dims() > 0,
                absl::InvalidArgumentError("params must be at least 1 dimensional"));
    const Tensor& indices = context->input(1);
    std::vector<int64_t> rows(indices.NumElements());
    if (indices.dtype() == tensorflow::DT_INT32) {
      std::copy_n(indices.flat<int32_t>().data(), rows.size(), rows.begin());
    } else {
      std::copy_n(indices.flat<int64_t>().data(), rows.size(), rows.begin());
    }
    for (size_t i = 0; i < rows.size(); ++i) {  // with the message of ResourceGather
      OP_REQUIRES(context, rows[i] >= 0 && rows[i] < table.dim_size(0),
                  absl::InvalidArgumentError(
                      absl::StrCat("indices", tensorflow::SliceDebugString(indices.shape(), i),
                                   " = ", rows[i], " is not in [0, ", table.dim_size(0), ")")));
    }
    TensorShape row = table, shape = indices.shape();
    row.RemoveDim(0);
    OP_REQUIRES_OK(context, shape.AppendShapeWithStatus(row));
    Tensor* output = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, shape, &output));
    if (output->NumElements() == 0) return;
    OP_REQUIRES_OK(context, variables->GatherRows(std::move(var), table, rows,
                                                  static_cast<char*>(output->data())));
  }
};

REGISTER_KERNEL_BUILDER(Name("_GatherVariableRows").Device(tensorflow::DEVICE_CPU),
                        GatherVariableRowsOp);

}  // namespace
}  // namespace tfswap
