#include "device/step_recorder.h"

#include <chrono>

#include "tensorflow/core/common_runtime/dma_helper.h"

namespace tfswap {

using ::tensorflow::OpKernel;
using ::tensorflow::OpKernelContext;
using ::tensorflow::Tensor;

namespace {

int64_t NowNs() {
  return std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
}

}  // namespace

void StepRecorder::Start(int64_t resident_bytes) {
  std::lock_guard<std::mutex> lock(mu_);
  ++recording_;
  trace_ = StepTrace();
  trace_.start_ns = NowNs();
  trace_.resident_bytes = resident_bytes;
  trace_.ops.reserve(1 << 14);
  trace_.buffers.reserve(1 << 13);
  trace_.accesses.reserve(1 << 15);
  names_ = std::make_unique<NameTable>(&trace_.names);
  live_.clear();
  on_.store(true);
}

StepTrace StepRecorder::Stop() {
  std::lock_guard<std::mutex> lock(mu_);
  on_.store(false);
  trace_.end_ns = NowNs();
  names_.reset();
  live_.clear();
  StepTrace trace;
  std::swap(trace, trace_);
  return trace;
}

void StepRecorder::Present(int64_t bytes, const std::string& op, BufferKind kind, const void* ptr) {
  AddBuffer(bytes, -1, op, kind, ptr);
}

void StepRecorder::Allocated(int64_t bytes, const std::string& op, BufferKind kind,
                             const void* ptr) {
  AddBuffer(bytes, NowNs(), op, kind, ptr);
}

void StepRecorder::AddBuffer(int64_t bytes, int64_t alloc_ns, const std::string& op,
                             BufferKind kind, const void* ptr) {
  std::lock_guard<std::mutex> lock(mu_);
  if (!on()) return;
  live_[ptr] = static_cast<int32_t>(trace_.buffers.size());
  trace_.buffers.push_back(
      {bytes, alloc_ns, -1, names_->InternOf(&op, op), static_cast<int32_t>(kind)});
}

void StepRecorder::Freed(const void* ptr) {
  std::lock_guard<std::mutex> lock(mu_);
  if (!on()) return;
  auto it = live_.find(ptr);
  if (it == live_.end()) return;
  trace_.buffers[it->second].free_ns = NowNs();
  live_.erase(it);
}

int StepRecorder::OpBegins(const OpKernel& kernel, OpKernelContext* context) {
  std::lock_guard<std::mutex> lock(mu_);
  if (!on()) return -1;
  const int op = static_cast<int>(trace_.ops.size());
  OpRecord record{};
  record.step_id = context->step_id();
  record.frame = context->frame_iter().frame_id;
  record.iteration = context->frame_iter().iter_id;
  record.name = names_->InternOf(&kernel, kernel.name_view());
  record.type = names_->InternOf(&kernel.def().op(), kernel.type_string_view());
  record.end_ns = -1;
  for (int i = 0; i < context->num_inputs(); ++i) {
    if (context->has_input(i) && !context->input_is_ref(i)) AddAccess(op, i, context->input(i));
  }
  record.start_ns = NowNs();
  trace_.ops.push_back(record);
  return op;
}

void StepRecorder::OpEnds(int op, OpKernelContext* context, int64_t wait_ns) {
  const int64_t now = NowNs();
  std::lock_guard<std::mutex> lock(mu_);
  if (!on() || op >= static_cast<int>(trace_.ops.size())) return;
  trace_.ops[op].end_ns = now;
  trace_.ops[op].wait_ns = wait_ns;
  for (int i = 0; i < context->num_outputs(); ++i) {
    const Tensor* output = context->mutable_output(i);
    if (output != nullptr) AddAccess(op, -1 - i, *output);
  }
}

void StepRecorder::AddAccess(int op, int port, const Tensor& tensor) {
  const auto* buffer = tensorflow::DMAHelper::buffer(&tensor);
  if (buffer == nullptr) return;
  // Slices and reshapes share a root: that is what is allocated and freed.
  auto* root = const_cast<tensorflow::TensorBuffer*>(buffer)->root_buffer();
  auto it = live_.find(root->data());
  if (it != live_.end()) trace_.accesses.push_back({op, port, it->second, 0});
}

}  // namespace tfswap
