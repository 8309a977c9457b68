#include "device/swap_device.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "allocator/kernel_scope.h"
#include "allocator/xla_launch.h"
#include "core/util/faults.h"
#include "core/util/forked.h"
#include "device/device_table.h"
#include "tensorflow/core/framework/cancellation.h"
#include "tensorflow/core/framework/device_factory.h"
#include "tensorflow/core/public/session_options.h"

namespace tfswap {

using ::tensorflow::AsyncOpKernel;
using ::tensorflow::Bytes;
using ::tensorflow::Device;
using ::tensorflow::DeviceLocality;
using ::tensorflow::OpKernel;
using ::tensorflow::OpKernelContext;
using ::tensorflow::SessionOptions;
using ::tensorflow::ThreadPoolDevice;

SwapDevice::SwapDevice(const SessionOptions& options, const std::string& name,
                       DeviceAllocator* allocator)
    : ThreadPoolDevice(options, name, Bytes(256 << 20), DeviceLocality(), allocator),
      allocator_(allocator),
      force_gpu_compatible_(options.config.gpu_options().force_gpu_compatible()) {}

tensorflow::Allocator* SwapDevice::GetAllocator(tensorflow::AllocatorAttributes attributes) {
  if (attributes.gpu_compatible() || force_gpu_compatible_) {
    if (tensorflow::Allocator* pinned = PinnedMemoryIfAny()) return pinned;
  }
  return ThreadPoolDevice::GetAllocator(attributes);
}

namespace {

void InjectCancel(OpKernelContext* context) {
  tensorflow::CancellationManager* step = context->cancellation_manager();
  if (step != nullptr && Faults::Strikes(Fault::kCancel)) step->StartCancel();
}

// A tf.data iterator that is cancelled while it prefetches may return OutOfRange, which Keras takes
// for the end of an epoch: a training would end early without an error.
void FixCancelStatus(OpKernelContext* context) {
  if (!absl::IsOutOfRange(context->status())) return;
  tensorflow::CancellationManager* step = context->cancellation_manager();
  if (step == nullptr || !step->IsCancelled()) return;
  // The context keeps the first error and has no other way to replace it.
  const_cast<absl::Status&>(context->status()) = absl::CancelledError(
      absl::StrCat("Operation was cancelled (", context->status().message(), ")"));
}

}  // namespace

void SwapDevice::Compute(OpKernel* kernel, OpKernelContext* context) {
  if (IsForked()) return ThreadPoolDevice::Compute(kernel, context);
  if (AsyncOpKernel* async = kernel->AsAsync()) return ComputeAndWait(this, async, context);
  InjectCancel(context);
  allocator_->guard()->Pass(*kernel, context, [&] { Run(kernel, context); });
  FixCancelStatus(context);
}

void SwapDevice::ComputeAsync(AsyncOpKernel* kernel, OpKernelContext* context,
                              AsyncOpKernel::DoneCallback done) {
  if (IsForked()) return ThreadPoolDevice::ComputeAsync(kernel, context, std::move(done));
  InjectCancel(context);
  auto finished = [context, done = std::move(done)] {
    FixCancelStatus(context);
    done();
  };
  allocator_->guard()->PassAsync(
      *kernel, context, std::move(finished),
      [&](AsyncOpKernel::DoneCallback at_end) { RunAsync(kernel, context, std::move(at_end)); });
}

void SwapDevice::Run(OpKernel* kernel, OpKernelContext* context) {
  const bool counted = allocator_->budget()->HasBudget();
  const bool planned = allocator_->slab()->active();
  StepRecorder* recorder = allocator_->recorder();
  if (!counted && !planned && !recorder->on()) {
    ThreadPoolDevice::Compute(kernel, context);
    return;
  }
  KernelScope scope(KernelScope::Role::kKernel, context);
  if (planned) scope.planned = allocator_->slab()->Find(*kernel);
  if (counted) {
    scope.crashes = absl::StartsWith(kernel->type_string_view(), "_Mkl");
    allocator_->budget()->KernelBegins(context->step_id());
  }
  StepRecorder::Op op;
  if (recorder->on()) op = recorder->OpBegins(*kernel, context);
  ThreadPoolDevice::Compute(kernel, context);
  if (!scope.failure.empty()) context->SetStatus(absl::ResourceExhaustedError(scope.failure));
  if (op) recorder->OpEnds(op, context, scope.wait_ns);
  if (counted) allocator_->budget()->KernelEnds();
}

void SwapDevice::RunAsync(AsyncOpKernel* kernel, OpKernelContext* context,
                          AsyncOpKernel::DoneCallback done) {
  StepRecorder* recorder = allocator_->recorder();
  if (recorder->on()) done = recorder->OpBeginsAsync(*kernel, context, std::move(done));
  const bool counted = allocator_->budget()->HasBudget();
  if (counted) allocator_->budget()->KernelBegins(context->step_id());
  const std::shared_ptr<XlaLaunch> xla = XlaLaunch::Of(*kernel, context);
  if (xla != nullptr) {
    done = [this, context, xla, done = std::move(done)] {
      BudgetAllocator::Explain(context);
      xla->Ended(*context, allocator_);
      done();
    };
  }
  {
    KernelScope scope(KernelScope::Role::kKernel, context);
    scope.xla = xla.get();
    if (allocator_->slab()->active()) scope.planned = allocator_->slab()->Find(*kernel);
    ThreadPoolDevice::ComputeAsync(kernel, context, std::move(done));
  }
  if (counted) allocator_->budget()->KernelEnds();
}

namespace {

class SwapDeviceFactory : public tensorflow::DeviceFactory {
 public:
  absl::Status ListPhysicalDevices(std::vector<std::string>* devices) override {
    devices->push_back("/physical_device:CPU:0");
    return absl::OkStatus();
  }

  absl::Status CreateDevices(const SessionOptions& options, const std::string& name_prefix,
                             std::vector<std::unique_ptr<Device>>* devices) override {
    int count = 1;
    auto it = options.config.device_count().find("CPU");
    if (it != options.config.device_count().end()) count = it->second;
    for (int i = 0; i < count; ++i) {
      devices->push_back(std::make_unique<SwapDevice>(
          options, absl::StrCat(name_prefix, "/device:CPU:", i), AllocatorOf(i)));
      RegisterDevice(i, nullptr);
    }
    return absl::OkStatus();
  }
};

// Above the stock CPU factories (60 and 70), below that of the GPU (210): priorities also decide
// placement.
tensorflow::dfactory::Registrar<SwapDeviceFactory> registrar("CPU", 100);

}  // namespace
}  // namespace tfswap
