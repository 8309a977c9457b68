// _VariableToHost and _VariableFromHost: evict the value of a variable after its last use in a
// step, and restore it for the next step. _VariableInCheckpoint: a file has the value already.
//
// They are hints: a value in use stays, and any use of an evicted value restores it
// (streamed_variables.h).

#include "absl/strings/str_cat.h"
#include "kernels/copy_engine.h"
#include "kernels/placement_request_attributes.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace tfswap {
namespace {

using ::tensorflow::AsyncOpKernel;
using ::tensorflow::OpKernelConstruction;
using ::tensorflow::OpKernelContext;
using ::tensorflow::Var;

// Stateful, so that no later pass drops or merges them.
REGISTER_OP("_VariableToHost")
    .Input("variable: resource")
    .Attr("tier: string = 'host'")
    .Attr("codec: string = ''")
    .Attr("rate: int = 100")
    .Attr("threads: int = 1")
    .Attr("detached: bool = false")
    .SetIsStateful()
    .SetShapeFn(::tensorflow::shape_inference::NoOutputs)
    .Doc(R"doc(
Swaps a variable's value out to far memory. Inserted by tfswap.

detached: no op waits for the copy.
The others are those of _CopyToHost.
)doc");

REGISTER_OP("_VariableFromHost")
    .Input("variable: resource")
    .SetIsStateful()
    .SetShapeFn(::tensorflow::shape_inference::NoOutputs)
    .Doc(R"doc(
Swaps a variable's value in. Inserted by tfswap.
)doc");

REGISTER_OP("_VariableInCheckpoint")
    .Input("variable: resource")
    .Input("value: int64")
    .Output("in_place: bool")
    .Attr("replaces: bool = false")
    .SetIsStateful()
    .SetShapeFn(::tensorflow::shape_inference::ScalarShape)
    .Doc(R"doc(
Tells whether a checkpoint has a variable's value, and places the value. Runs when a model is loaded
(tfswap/hooks).

value: a number from Library.find_in_checkpoint; 0: no checkpoint has it.
in_place: whether the value is the checkpoint's now.
replaces: whether the variable gets the checkpoint's value, of its size.
)doc");

class VariableOp : public AsyncOpKernel {
 public:
  using AsyncOpKernel::AsyncOpKernel;

  bool IsExpensive() override { return false; }

  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    auto* allocator =
        dynamic_cast<DeviceAllocator*>(context->get_allocator(tensorflow::AllocatorAttributes()));
    CopyEngine* engine = allocator == nullptr ? nullptr : CopyEngine::For(allocator);
    OP_REQUIRES_ASYNC(context, engine != nullptr,
                      absl::FailedPreconditionError(
                          absl::StrCat("tfswap: device ", context->device()->name(),
                                       " does not swap variables: create the plan on this device")),
                      done);
    tensorflow::core::RefCountPtr<Var> var;
    OP_REQUIRES_OK_ASYNC(context, LookupResource(context, HandleFromInput(context, 0), &var), done);
    Run(context, engine->variables(), std::move(var), [context, done](const absl::Status& status) {
      if (!status.ok()) context->SetStatus(status);
      done();
    });
  }

 protected:
  virtual void Run(OpKernelContext* context, StreamedVariables* variables,
                   tensorflow::core::RefCountPtr<Var> var, StreamedVariables::Done done) = 0;
};

class VariableToHostOp : public VariableOp {
 public:
  explicit VariableToHostOp(OpKernelConstruction* construction) : VariableOp(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("detached", &detached_));
    OP_REQUIRES_OK(construction,
                   ReadPlacementRequest(construction, tensorflow::DT_UINT8, &request_));
  }

 protected:
  void Run(OpKernelContext*, StreamedVariables* variables, tensorflow::core::RefCountPtr<Var> var,
           StreamedVariables::Done done) override {
    variables->SwapOut(std::move(var), request_, detached_, std::move(done));
  }

  bool detached_;
  PlacementRequest request_;
};

// Synchronous like _CopyToHost on GPUs; see copy_ops.cc.
class VariableToHostGpuOp : public VariableToHostOp {
 public:
  using VariableToHostOp::VariableToHostOp;

  AsyncOpKernel* AsAsync() override {
    return request_.tier == FarTier::kFile && !detached_ ? this : nullptr;
  }

  void Compute(OpKernelContext* context) override {
    ComputeAsync(context, [] {});
  }
};

class VariableFromHostOp : public VariableOp {
 public:
  using VariableOp::VariableOp;

 protected:
  void Run(OpKernelContext*, StreamedVariables* variables, tensorflow::core::RefCountPtr<Var> var,
           StreamedVariables::Done done) override {
    variables->SwapIn(std::move(var), [done = std::move(done)] { done(absl::OkStatus()); });
  }
};

// Ends when the copy is enqueued, or immediately: users of the value wait for it.
class VariableFromHostGpuOp : public VariableFromHostOp {
 public:
  using VariableFromHostOp::VariableFromHostOp;

  AsyncOpKernel* AsAsync() override { return nullptr; }

  void Compute(OpKernelContext* context) override {
    ComputeAsync(context, [] {});
  }
};

class VariableInCheckpointOp : public VariableOp {
 public:
  explicit VariableInCheckpointOp(OpKernelConstruction* construction) : VariableOp(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("replaces", &replaces_));
  }

  AsyncOpKernel* AsAsync() override { return nullptr; }

  void Compute(OpKernelContext* context) override {
    ComputeAsync(context, [] {});
  }

 protected:
  void Run(OpKernelContext* context, StreamedVariables* variables,
           tensorflow::core::RefCountPtr<Var> var, StreamedVariables::Done done) override {
    auto value = CheckpointValue::Take(context->input(1).scalar<int64_t>()());
    bool in_place = value != nullptr;
    if (!replaces_) {
      variables->SetCheckpoint(std::move(var), std::move(value));
    } else if (in_place) {
      in_place = variables->ReplaceByCheckpoint(std::move(var), std::move(value));
    }
    tensorflow::Tensor* output = nullptr;
    const absl::Status status = context->allocate_output(0, {}, &output);
    if (status.ok()) output->scalar<bool>()() = in_place;
    done(status);
  }

  bool replaces_;
};

REGISTER_KERNEL_BUILDER(Name("_VariableToHost").Device(tensorflow::DEVICE_CPU), VariableToHostOp);
REGISTER_KERNEL_BUILDER(Name("_VariableFromHost").Device(tensorflow::DEVICE_CPU),
                        VariableFromHostOp);
REGISTER_KERNEL_BUILDER(
    Name("_VariableToHost").Device(tensorflow::DEVICE_GPU).HostMemory("variable"),
    VariableToHostGpuOp);
REGISTER_KERNEL_BUILDER(
    Name("_VariableFromHost").Device(tensorflow::DEVICE_GPU).HostMemory("variable"),
    VariableFromHostGpuOp);
REGISTER_KERNEL_BUILDER(Name("_VariableInCheckpoint").Device(tensorflow::DEVICE_CPU),
                        VariableInCheckpointOp);
REGISTER_KERNEL_BUILDER(Name("_VariableInCheckpoint")
                            .Device(tensorflow::DEVICE_GPU)
                            .HostMemory("variable")
                            .HostMemory("value")
                            .HostMemory("in_place"),
                        VariableInCheckpointOp);

}  // namespace
}  // namespace tfswap
