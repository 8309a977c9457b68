#include "engine/rig.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "allocator/kernel_scope.h"
#include "device/device_table.h"
#include "kernels/thread_copy_engine.h"
#include "pattern.h"
#include "tensorflow/core/framework/node_def_builder.h"
#include "tensorflow/core/public/session_options.h"
#include "tensorflow/core/public/version.h"

namespace races {

using ::tensorflow::CancellationManager;
using ::tensorflow::Device;
using ::tensorflow::NodeDef;
using ::tensorflow::NodeDefBuilder;
using ::tensorflow::OpKernel;
using ::tensorflow::OpKernelContext;
using ::tensorflow::Tensor;
using ::tensorflow::TensorShape;
using ::tfswap::KernelScope;

namespace {

constexpr size_t kAlignment = 64;
constexpr int64_t kStep = 1;

bool IsShortOfMemory(const absl::Status& status) {
  return status.code() == absl::StatusCode::kResourceExhausted;
}

std::string Text(const absl::Status& status) { return std::string(status.message()); }

}  // namespace

OpRun::OpRun(Device* device, OpKernel* kernel, std::vector<Tensor> inputs,
             CancellationManager* cancellation)
    : device_(device), inputs_(std::move(inputs)) {
  for (Tensor& input : inputs_) values_.emplace_back(&input);
  params_.step_id = kStep;
  params_.op_kernel = kernel;
  params_.device = device;
  params_.output_attr_array = &attributes_;
  params_.cancellation_manager = cancellation;
  params_.resource_manager = device->resource_manager();
  params_.inputs = values_;
  context_ = std::make_unique<OpKernelContext>(&params_, kernel->num_outputs());
}

void OpRun::Start(std::function<void()> done) {
  auto at_end = [this, done = std::move(done)] {
    for (Tensor& input : inputs_) input = Tensor();
    done();
  };
  if (tensorflow::AsyncOpKernel* kernel = params_.op_kernel->AsAsync()) {
    device_->ComputeAsync(kernel, context_.get(), std::move(at_end));
  } else {
    device_->Compute(params_.op_kernel, context_.get());
    at_end();
  }
}

void OpRun::Run() {
  Event ended;
  Start([&ended] { ended.Notify(); });
  ended.Wait();
}

Tensor OpRun::TakeOutput() {
  const std::unique_ptr<Tensor> output(context_->release_output(0).tensor);
  return output == nullptr ? Tensor() : *output;
}

Rig::Rig()
    : allocator_(tfswap::AllocatorOf(0)),
      device_(std::make_unique<tfswap::SwapDevice>(tensorflow::SessionOptions(),
                                                   "/job:localhost/replica:0/task:0/device:CPU:0",
                                                   allocator_)),
      engine_(tfswap::CopyEngine::For(allocator_)) {}

OpKernel* Rig::Kernel(const std::string& key, const std::function<NodeDef()>& node) {
  std::lock_guard<std::mutex> lock(mu_);
  std::unique_ptr<OpKernel>& kernel = kernels_[key];
  if (kernel == nullptr) {
    absl::Status status;
    kernel = tensorflow::CreateOpKernel(tensorflow::DeviceType("CPU"), device_.get(), allocator_,
                                        node(), TF_GRAPH_DEF_VERSION, &status);
    TF_CHECK_OK(status);
  }
  return kernel.get();
}

OpKernel* Rig::Out(const Swap& swap) {
  const std::string key = absl::StrCat("out ", swap.lazy, " ", swap.returns, " ", swap.next_use,
                                       " ", swap.tier, " ", swap.codec, " ", swap.threads);
  return Kernel(key, [&swap] {
    NodeDef node;
    TF_CHECK_OK(NodeDefBuilder("out", "_CopyToHost")
                    .Input("tensor", 0, tensorflow::DT_FLOAT)
                    .Attr("lazy", swap.lazy)
                    .Attr("returns", swap.returns)
                    .Attr("next_use", swap.next_use)
                    .Attr("tier", swap.tier)
                    .Attr("codec", swap.codec)
                    .Attr("threads", swap.threads)
                    .Finalize(&node));
    return node;
  });
}

OpKernel* Rig::In(int64_t next_use, bool lazy) {
  return Kernel(absl::StrCat("in ", next_use, " ", lazy), [next_use, lazy] {
    NodeDef node;
    TF_CHECK_OK(NodeDefBuilder("in", "_CopyFromHost")
                    .Input("handle", 0, tensorflow::DT_VARIANT)
                    .Attr("T", tensorflow::DT_FLOAT)
                    .Attr("next_use", next_use)
                    .Attr("lazy", lazy)
                    .Finalize(&node));
    return node;
  });
}

Tensor Rig::Make(int64_t bytes, uint32_t owner) {
  KernelScope scope(KernelScope::Role::kKernel, nullptr);
  allocator_->budget()->KernelBegins(kStep);
  Tensor tensor(allocator_, tensorflow::DT_FLOAT, TensorShape({bytes / 4}));
  allocator_->budget()->KernelEnds();
  if (tensor.IsInitialized()) Fill(tensor.data(), bytes, owner);
  return tensor;
}

Tensor Rig::SwapOut(const Swap& swap, int64_t bytes, uint32_t owner) {
  Tensor tensor = Make(bytes, owner);
  if (!tensor.IsInitialized()) return Tensor();
  OpRun out(device_.get(), Out(swap), {std::move(tensor)});
  out.Run();
  if (IsShortOfMemory(out.status())) return Tensor();  // not even for the handle
  TF_CHECK_OK(out.status());
  return out.TakeOutput();
}

std::string Rig::SwapIn(const Tensor& handle, uint32_t owner, bool* came,
                        CancellationManager* cancellation, int64_t next_use, bool lazy) {
  OpRun in(device_.get(), In(next_use, lazy), {handle}, cancellation);
  in.Run();
  if (came != nullptr) *came = in.status().ok();
  if (IsShortOfMemory(in.status()) || absl::IsCancelled(in.status())) return "";
  if (!in.status().ok()) return Text(in.status());
  const Tensor tensor = in.TakeOutput();
  if (tensor.NumElements() == 0) return "nothing came back";
  const auto bytes = static_cast<int64_t>(tensor.TotalBytes());
  return Holds(tensor.data(), bytes, owner) ? "" : "another tensor came back";
}

bool Rig::Compute(int64_t bytes, const std::function<void(void*)>& meanwhile) {
  KernelScope scope(KernelScope::Role::kKernel, nullptr);
  allocator_->budget()->KernelBegins(kStep);
  void* block = allocator_->AllocateRaw(kAlignment, static_cast<size_t>(bytes));
  if (block != nullptr) {
    meanwhile(block);
    allocator_->DeallocateRaw(block);
  }
  allocator_->budget()->KernelEnds();
  return block != nullptr;
}

std::string Rig::Leftovers() {
  const auto left = [](const char* what, int64_t number) {
    return std::string(what) + ": " + std::to_string(number) + " are left";
  };
  const tfswap::BudgetStats budget = allocator_->budget()->Stats();
  // The slab's claimed memory is paid for, for any user.
  const tfswap::SlabAllocatorStats slab = allocator_->slab()->Stats();
  if (slab.slab.claimed_bytes != 0) return left("bytes of the slab", slab.slab.claimed_bytes);
  if (budget.bytes_in_use != slab.slab.committed_bytes) {
    return left("bytes of the budget", budget.bytes_in_use - slab.slab.committed_bytes);
  }
  const int64_t load = allocator_->GetStats()->bytes_in_use;
  if (load != 0) return left("bytes of load", load);
  if (engine_->Stats().buffers_alive != 0) return left("buffers", engine_->Stats().buffers_alive);
  if (engine_->BytesLeaving() != 0) return left("bytes that leave", engine_->BytesLeaving());
  if (engine_->IsCopyingIn()) return "somebody still copies in";
  const int64_t host = engine_->host_memory()->Stats().bytes_in_use;
  if (host != 0) return left("bytes of host memory", host);
  for (const tfswap::FarTierStats& tier : engine_->FarUse().tiers) {
    if (tier.bytes_in_use != 0) return left("bytes of a tier", tier.bytes_in_use);
  }
  return "";
}

}  // namespace races
