// TensorFlow's GPU device with a memory budget, a recorder and hazard tracking. TensorFlow creates
// its allocator, streams and contexts as usual; tfswap's are wrapped around them.

#ifndef GOOGLE_CUDA
#define GOOGLE_CUDA 1
#endif
#include "tensorflow/core/common_runtime/gpu/gpu_device.h"

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "allocator/device_allocator.h"
#include "allocator/kernel_scope.h"
#include "allocator/xla_launch.h"
#include "core/gpu/hazard_tracker.h"
#include "device/device_table.h"
#include "gpu/cuda_gpu.h"
#include "gpu/hazard_allocator.h"
#include "gpu/stream_copy_engine.h"
#include "tensorflow/core/common_runtime/dma_helper.h"
#include "tensorflow/core/common_runtime/gpu/gpu_process_state.h"
#include "tensorflow/core/framework/device_factory.h"
#include "tensorflow/core/framework/tracking_allocator.h"
#include "tensorflow/core/public/session_options.h"

namespace tfswap {

using ::tensorflow::Allocator;
using ::tensorflow::AllocatorAttributes;
using ::tensorflow::AsyncOpKernel;
using ::tensorflow::BaseGPUDevice;
using ::tensorflow::BaseGPUDeviceFactory;
using ::tensorflow::Bytes;
using ::tensorflow::DeviceLocality;
using ::tensorflow::GPUProcessState;
using ::tensorflow::OpKernel;
using ::tensorflow::OpKernelContext;
using ::tensorflow::SessionOptions;

namespace {

// State shared by all devices of the same GPU for the life of the process, like TensorFlow's
// allocator and streams.
struct Gpu {
  std::unique_ptr<DeviceAllocator> allocator;
  HazardAllocator* hazards = nullptr;  // owned by the allocator
  HazardTracker::Memory memory = HazardTracker::Memory::kInOrder;
  CudaGpu* cuda = nullptr;          // set before the tracker
  std::atomic<bool> broken{false};  // it has no streams for copies
  std::mutex mu;
  std::atomic<HazardTracker*> tracker{nullptr};  // null until there is a stream
};

Gpu* GpuOf(int number, Allocator* memory) {
  static std::mutex mu;
  static auto* gpus = new std::map<int, Gpu*>();
  std::lock_guard<std::mutex> lock(mu);
  Gpu*& gpu = (*gpus)[number];
  if (gpu != nullptr) return gpu;
  gpu = new Gpu();
  // The allocator of TF_GPU_ALLOCATOR=cuda_malloc does not track sizes, which tfswap needs.
  if (!memory->TracksAllocationSizes()) {
    memory = new tensorflow::TrackingAllocator(memory, /*track_ids=*/true);
  }
  // cudaMallocAsync allocates and frees in stream order.
  if (absl::StrContains(memory->Name(), "async")) {
    gpu->memory = HazardTracker::Memory::kStreamOrdered;
  }
  gpu->allocator = std::make_unique<DeviceAllocator>(
      memory, [](Allocator* next) { return std::make_unique<HazardAllocator>(next); });
  gpu->hazards = static_cast<HazardAllocator*>(gpu->allocator->watch());
  return gpu;
}

const void* RootOf(const tensorflow::Tensor& tensor) {
  const auto* buffer = tensorflow::DMAHelper::buffer(&tensor);
  if (buffer == nullptr) return nullptr;
  return const_cast<tensorflow::TensorBuffer*>(buffer)->root_buffer()->data();
}

class SwapGpuDevice : public BaseGPUDevice {
 public:
  SwapGpuDevice(const SessionOptions& options, const std::string& name, Bytes memory_limit,
                const DeviceLocality& locality, tsl::TfDeviceId id, const std::string& description,
                Gpu* gpu, Allocator* cpu_allocator)
      : BaseGPUDevice(options, name, memory_limit, locality, id, description, gpu->allocator.get(),
                      cpu_allocator, /*sync_every_op=*/false),
        gpu_(gpu),
        force_gpu_compatible_(options.config.gpu_options().force_gpu_compatible()) {}

  Allocator* GetAllocator(AllocatorAttributes attributes) override {
    if (!attributes.on_host()) return gpu_->allocator.get();
    if (attributes.gpu_compatible() || force_gpu_compatible_) {
      return GPUProcessState::singleton()->GetGpuHostAllocator({}, 0);
    }
    return cpu_allocator_;
  }

  void Compute(OpKernel* kernel, OpKernelContext* context) override {
    if (AsyncOpKernel* async = kernel->AsAsync()) return ComputeAndWait(this, async, context);
    gpu_->allocator->guard()->Pass(*kernel, context, [&] { Run(kernel, context); });
  }

  void ComputeAsync(AsyncOpKernel* kernel, OpKernelContext* context,
                    AsyncOpKernel::DoneCallback done) override {
    gpu_->allocator->guard()->PassAsync(
        *kernel, context, std::move(done),
        [&](AsyncOpKernel::DoneCallback at_end) { RunAsync(kernel, context, std::move(at_end)); });
  }

 private:
  void Run(OpKernel* kernel, OpKernelContext* context) {
    HazardTracker* tracker = TrackerOf();
    DeviceAllocator* allocator = gpu_->allocator.get();
    StepRecorder* recorder = allocator->recorder();
    const bool counted = allocator->budget()->HasBudget();
    const bool tracked = tracker != nullptr && tracker->active();
    SlabAllocator* slab = allocator->slab();
    const bool planned = slab->active();
    if (!counted && !tracked && !planned && !recorder->on()) {
      BaseGPUDevice::Compute(kernel, context);
      return;
    }
    KernelScope scope(KernelScope::Role::kKernel, context);
    if (planned) scope.planned = slab->Find(*kernel);
    if (tracked && !BeforeOp(tracker, context)) return;
    if (counted) allocator->budget()->KernelBegins(context->step_id());
    StepRecorder::Op op;
    if (recorder->on()) op = recorder->OpBegins(*kernel, context);
    BaseGPUDevice::Compute(kernel, context);
    BudgetAllocator::Explain(context);
    if (tracked) CheckGpu(context);
    if (op) recorder->OpEnds(op, context, scope.wait_ns);
    if (counted) allocator->budget()->KernelEnds();
  }

  void RunAsync(AsyncOpKernel* kernel, OpKernelContext* context, AsyncOpKernel::DoneCallback done) {
    HazardTracker* tracker = TrackerOf();
    if (tracker != nullptr && tracker->active() && !BeforeOp(tracker, context)) return done();
    DeviceAllocator* allocator = gpu_->allocator.get();
    StepRecorder* recorder = allocator->recorder();
    if (recorder->on()) done = recorder->OpBeginsAsync(*kernel, context, std::move(done));
    const bool counted = allocator->budget()->HasBudget();
    if (counted) allocator->budget()->KernelBegins(context->step_id());
    const std::shared_ptr<XlaLaunch> xla = XlaLaunch::Of(*kernel, context);
    if (counted || xla != nullptr) {
      done = [context, allocator, xla, done = std::move(done)] {
        BudgetAllocator::Explain(context);
        if (xla != nullptr) xla->Ended(*context, allocator);
        done();
      };
    }
    {
      KernelScope scope(KernelScope::Role::kKernel, context);
      scope.xla = xla.get();
      if (allocator->slab()->active()) scope.planned = allocator->slab()->Find(*kernel);
      BaseGPUDevice::ComputeAsync(kernel, context, std::move(done));
    }
    if (counted) allocator->budget()->KernelEnds();
  }

  // Created with the first kernel, because TensorFlow creates its streams after the device.
  HazardTracker* TrackerOf() {
    HazardTracker* tracker = gpu_->tracker.load(std::memory_order_acquire);
    if (tracker != nullptr || compute_stream() == nullptr || gpu_->broken.load()) return tracker;
    std::lock_guard<std::mutex> lock(gpu_->mu);
    tracker = gpu_->tracker.load(std::memory_order_relaxed);
    if (tracker != nullptr) return tracker;
    absl::StatusOr<CudaGpu*> gpu =
        CudaGpu::Make(compute_stream()->platform_specific_handle().stream);
    if (!gpu.ok()) {  // an error of the first swap
      CopyEngine::SetProblem(gpu_->allocator.get(), gpu.status());
      gpu_->broken.store(true);
      return nullptr;
    }
    tracker = new HazardTracker(*gpu, gpu_->memory);
    new StreamCopyEngine(gpu_->allocator.get(), *gpu, tracker);
    gpu_->allocator->recorder()->SetGpuClock((*gpu)->clock());
    gpu_->hazards->SetTracker(tracker);
    gpu_->cuda = *gpu;
    gpu_->tracker.store(tracker, std::memory_order_release);
    return tracker;
  }

  // Return whether the op may run. A wait that the driver refused is a missing order.
  bool BeforeOp(HazardTracker* tracker, OpKernelContext* context) {
    tracker->OpBegins();
    for (int i = 0; i < context->num_inputs(); ++i) {
      if (!context->has_input(i) || context->input_is_ref(i)) continue;
      tracker->BeforeUse(RootOf(context->input(i)));
    }
    return CheckGpu(context);
  }

  bool CheckGpu(OpKernelContext* context) {
    if (!gpu_->cuda->failed()) return true;
    if (context->status().ok()) context->SetStatus(gpu_->cuda->status());
    return false;
  }

  Gpu* const gpu_;
  const bool force_gpu_compatible_;
};

// What BFC may hand out beyond the request, as a fraction of the GPU's memory, where TensorFlow's
// default lets it hand out twice the request or 128 MiB more.
constexpr double kMostInternalFragmentation = 1e-6;

class SwapGpuDeviceFactory : public BaseGPUDeviceFactory {
 public:
  absl::Status CreateDevices(const SessionOptions& options, const std::string& name_prefix,
                             std::vector<std::unique_ptr<tensorflow::Device>>* devices) override {
    SessionOptions exact = options;
    auto* experimental = exact.config.mutable_gpu_options()->mutable_experimental();
    if (experimental->internal_fragmentation_fraction() <= 0) {
      experimental->set_internal_fragmentation_fraction(kMostInternalFragmentation);
    }
    return BaseGPUDeviceFactory::CreateDevices(exact, name_prefix, devices);
  }

 private:
  std::unique_ptr<BaseGPUDevice> CreateGPUDevice(const SessionOptions& options,
                                                 const std::string& name, Bytes memory_limit,
                                                 const DeviceLocality& locality, tsl::TfDeviceId id,
                                                 const std::string& description,
                                                 Allocator* gpu_allocator,
                                                 Allocator* cpu_allocator) override {
    Gpu* gpu = GpuOf(id.value(), gpu_allocator);
    RegisterDevice(kFirstGpu + id.value(), gpu->allocator.get());
    return std::make_unique<SwapGpuDevice>(options, name, memory_limit, locality, id, description,
                                           gpu, cpu_allocator);
  }
};

// Pinned host memory for tensors that the CPU produces for a GPU, as on TensorFlow's own CPU
// device.
[[maybe_unused]] const bool pinned = [] {
  SetPinnedMemory([] { return GPUProcessState::singleton()->GetGpuHostAllocator({}, 0); });
  return true;
}();

// Above TensorFlow's factory (210).
tensorflow::dfactory::Registrar<SwapGpuDeviceFactory> registrar("GPU", 300);

}  // namespace
}  // namespace tfswap
