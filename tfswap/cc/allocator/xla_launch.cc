#include "allocator/xla_launch.h"

#include <algorithm>
#include <utility>

#include "absl/synchronization/notification.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/platform/mutex.h"

namespace tfswap {

using ::tensorflow::AsyncOpKernel;
using ::tensorflow::OpKernelContext;

namespace {

void* BlockOf(tensorflow::Var* variable) { return variable->tensor()->data(); }

}  // namespace

std::shared_ptr<XlaLaunch> XlaLaunch::Of(const AsyncOpKernel& kernel, OpKernelContext* context) {
  if (!IsCompiled(kernel) || !HasVariable(context)) return nullptr;
  return std::shared_ptr<XlaLaunch>(new XlaLaunch(context));
}

XlaLaunch::XlaLaunch(OpKernelContext* context) : variables_(VariableInputs(context)) {
  for (const VariableInput& each : variables_) {
    tensorflow::tf_shared_lock lock(*each.var->mu());
    blocks_.push_back(BlockOf(each.var.get()));
  }
  std::sort(blocks_.begin(), blocks_.end());
}

bool XlaLaunch::Defer(void* ptr) {
  if (!std::binary_search(blocks_.begin(), blocks_.end(), ptr)) return false;
  deferred_.push_back(ptr);
  return true;
}

void XlaLaunch::Ended(const OpKernelContext& context, tensorflow::Allocator* allocator) {
  blocks_.clear();  // what the next ops free is no longer this run's
  std::vector<void*> kept;
  if (!deferred_.empty() && !context.status().ok()) {
    for (const VariableInput& each : variables_) kept.push_back(BlockOf(each.var.get()));
  }
  for (void* ptr : std::exchange(deferred_, {})) {
    if (std::find(kept.begin(), kept.end(), ptr) == kept.end()) allocator->DeallocateRaw(ptr);
  }
}

void ComputeAndWait(tensorflow::Device* device, AsyncOpKernel* kernel, OpKernelContext* context) {
  absl::Notification ended;
  device->ComputeAsync(kernel, context, [&ended] { ended.Notify(); });
  ended.WaitForNotification();
}

}  // namespace tfswap
