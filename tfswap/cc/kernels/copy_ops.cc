// _CopyToHost and _CopyFromHost: the swap-out and swap-in ops.
//
// Their names start with an underscore because only the graph pass may create them: a handle is
// valid within one step of one process.

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "kernels/copy_engine.h"
#include "kernels/far_handle.h"
#include "kernels/placement_request_attributes.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow/core/framework/variant.h"

namespace tfswap {

CopyEngine* EngineOf(tensorflow::OpKernelContext* context) {
  auto* allocator =
      dynamic_cast<DeviceAllocator*>(context->get_allocator(tensorflow::AllocatorAttributes()));
  if (allocator == nullptr) {
    context->SetStatus(absl::FailedPreconditionError(
        absl::StrCat("tfswap: device ", context->device()->name(),
                     " is TensorFlow's own, not tfswap's: import tfswap before the first "
                     "TensorFlow operation")));
    return nullptr;
  }
  CopyEngine* engine = CopyEngine::For(allocator);
  if (engine == nullptr) {
    const absl::Status problem = CopyEngine::ProblemOf(allocator);
    context->SetStatus(
        problem.ok() ? absl::FailedPreconditionError(absl::StrCat(
                           "tfswap: device ", context->device()->name(), " has no stream yet"))
                     : problem);
  }
  return engine;
}

namespace {

using ::tensorflow::AsyncOpKernel;
using ::tensorflow::OpKernel;
using ::tensorflow::OpKernelConstruction;
using ::tensorflow::OpKernelContext;
using ::tensorflow::Tensor;
using ::tensorflow::TensorShape;
using ::tensorflow::Variant;

// Stateful, so that no later pass merges, folds or moves a copy.
REGISTER_OP("_CopyToHost")
    .Input("tensor: T")
    .Output("handle: variant")
    .Attr("T: type")
    .Attr("lazy: bool = false")
    .Attr("returns: int = 1")
    .Attr("next_use: int = 0")
    .Attr("min_bytes: int = 0")
    .Attr("tier: string = 'host'")
    .Attr("codec: string = ''")
    .Attr("rate: int = 100")
    .Attr("threads: int = 1")
    .SetIsStateful()
    .SetShapeFn(::tensorflow::shape_inference::ScalarShape)
    .Doc(R"doc(
Swaps a tensor out to far memory and returns a handle to it. Inserted by tfswap.

lazy: keep the tensor on the device until its memory is needed (on-demand swap).
returns: number of _CopyFromHost ops that read the handle.
next_use: position of the next access in the step; on-demand swaps evict the latest first.
min_bytes: smaller tensors stay on the device.
tier: tier of far memory: host, compressed or file.
codec: codec of the compressed tier.
rate: encoded size of a lossy codec in percent. Lossy codecs are used only if
  tfswap_set_lossy_rate allows them.
threads: host threads that encode and decode.
)doc");

REGISTER_OP("_CopyFromHost")
    .Input("handle: variant")
    .Output("tensor: T")
    .Attr("T: type")
    .Attr("next_use: int = 0")
    .Attr("order: int = 0")
    .Attr("lazy: bool = false")
    .SetIsStateful()
    .SetShapeFn(::tensorflow::shape_inference::UnknownShape)
    .Doc(R"doc(
Swaps the tensor of a handle in. Inserted by tfswap.

next_use: position of the next access after this one in the step.
order: whether that access follows the iterations of its loop (1), or goes back through them (-1).
lazy: whether it left on demand. Its reader is then the next op to run, and on a CPU the thread that
  runs it brings the tensor back: successors of asynchronous ops run on another thread.
)doc");

struct SwapOut {
  explicit SwapOut(OpKernelConstruction* construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("lazy", &lazy));
    OP_REQUIRES_OK(construction, construction->GetAttr("returns", &returns));
    OP_REQUIRES_OK(construction, construction->GetAttr("next_use", &next_use));
    OP_REQUIRES_OK(construction, construction->GetAttr("min_bytes", &min_bytes));
    tensorflow::DataType dtype;
    OP_REQUIRES_OK(construction, construction->GetAttr("T", &dtype));
    OP_REQUIRES_OK(construction, ReadPlacementRequest(construction, dtype, &request));
  }

  bool EndsLater() const { return request.tier == FarTier::kFile && !lazy; }

  // `done` may be called on another thread, or before this returns.
  void Run(OpKernelContext* context, absl::string_view label,
           const std::function<void()>& done) const {
    CopyEngine* engine = EngineOf(context);
    if (engine == nullptr) return done();
    Tensor* handle = nullptr;
    OP_REQUIRES_OK_ASYNC(context, context->allocate_output(0, TensorShape({}), &handle), done);
    const Tensor& tensor = context->input(0);
    auto buffer = std::make_shared<FarBuffer>(engine, std::string(label), tensor, returns,
                                              PlaceOf(next_use, 0, context), request);
    handle->scalar<Variant>()() = FarHandle{buffer};
    if (buffer->bytes == 0 || buffer->bytes < min_bytes || !DataTypeCanUseMemcpy(tensor.dtype())) {
      return done();
    }
    engine->Sample(*buffer, tensor.data());
    if (lazy) {
      engine->MakeEvictable(buffer);
      return done();
    }
    engine->SwapOut(buffer, [context, done](const absl::Status& status) {
      if (!status.ok()) context->SetStatus(status);
      done();
    });
  }

  bool lazy;
  int returns;
  int64_t next_use;
  int64_t min_bytes;
  PlacementRequest request;
};

// Inexpensive ops run inline when they become ready: the copy should start early.
class CopyToHostOp : public AsyncOpKernel {
 public:
  explicit CopyToHostOp(OpKernelConstruction* construction)
      : AsyncOpKernel(construction), swap_(construction) {}

  bool IsExpensive() override { return false; }

  // On demand it copies nothing, and the next op can run on the same thread.
  AsyncOpKernel* AsAsync() override { return swap_.lazy ? nullptr : this; }

  void Compute(OpKernelContext* context) override {
    swap_.Run(context, name_view(), [] {});
  }

  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    swap_.Run(context, name_view(), done);
  }

 protected:
  const SwapOut swap_;
};

// On a GPU, a copy op ends when the copy is enqueued. It is synchronous because successors of an
// asynchronous op run on another thread, and ops should keep their order. Only a planned swap-out
// to the file, which takes the time of the disk, ends when the tensor is released; its gates wait
// for that.
class CopyToHostGpuOp : public CopyToHostOp {
 public:
  using CopyToHostOp::CopyToHostOp;

  AsyncOpKernel* AsAsync() override { return swap_.EndsLater() ? this : nullptr; }
};

class CopyFromHostOp : public AsyncOpKernel {
 public:
  explicit CopyFromHostOp(OpKernelConstruction* construction) : AsyncOpKernel(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("T", &dtype_));
    OP_REQUIRES_OK(construction, construction->GetAttr("next_use", &next_use_));
    OP_REQUIRES_OK(construction, construction->GetAttr("order", &order_));
  }

  bool IsExpensive() override { return false; }

  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    FarBufferPtr buffer = BufferOf(context);
    if (buffer == nullptr) return done();
    EngineOf(context)->SwapIn(buffer, NextUse(context), context, std::move(done));
  }

 protected:
  // Return the buffer of the handle; null with an error status in the context.
  FarBufferPtr BufferOf(OpKernelContext* context) const {
    if (EngineOf(context) == nullptr) return nullptr;
    const FarHandle* handle = context->input(0).scalar<Variant>()().get<FarHandle>();
    if (handle == nullptr) {
      context->SetStatus(absl::InvalidArgumentError(
          absl::StrCat("tfswap: input 0 of '", name_view(), "' is not a handle of _CopyToHost")));
      return nullptr;
    }
    if (handle->buffer->dtype != dtype_) {
      context->SetStatus(absl::InvalidArgumentError(
          absl::StrCat("tfswap: '", name_view(), "' wants ", DataTypeString(dtype_), " but '",
                       handle->buffer->label, "' holds ", DataTypeString(handle->buffer->dtype))));
      return nullptr;
    }
    return handle->buffer;
  }

  int64_t NextUse(OpKernelContext* context) const { return PlaceOf(next_use_, order_, context); }

 private:
  tensorflow::DataType dtype_;
  int64_t next_use_, order_;
};

// On a CPU.
class CopyFromHostCpuOp : public CopyFromHostOp {
 public:
  explicit CopyFromHostCpuOp(OpKernelConstruction* construction) : CopyFromHostOp(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("lazy", &lazy_));
  }

  AsyncOpKernel* AsAsync() override { return lazy_ ? nullptr : this; }

  void Compute(OpKernelContext* context) override {
    const FarBufferPtr buffer = BufferOf(context);
    if (buffer != nullptr) EngineOf(context)->SwapInByKernel(buffer, NextUse(context), context);
  }

 private:
  bool lazy_;
};

REGISTER_KERNEL_BUILDER(Name("_CopyToHost").Device(tensorflow::DEVICE_CPU), CopyToHostOp);
REGISTER_KERNEL_BUILDER(Name("_CopyFromHost").Device(tensorflow::DEVICE_CPU), CopyFromHostCpuOp);
// For tfswap's GPU devices, which libtfswap_gpu provides.
REGISTER_KERNEL_BUILDER(Name("_CopyToHost").Device(tensorflow::DEVICE_GPU).HostMemory("handle"),
                        CopyToHostGpuOp);
REGISTER_KERNEL_BUILDER(Name("_CopyFromHost").Device(tensorflow::DEVICE_GPU).HostMemory("handle"),
                        CopyFromHostOp);

}  // namespace
}  // namespace tfswap
