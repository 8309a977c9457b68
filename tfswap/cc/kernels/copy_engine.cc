#include "kernels/copy_engine.h"

#include <pthread.h>

#include <chrono>
#include <map>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "allocator/kernel_scope.h"
#include "core/copy.h"
#include "tensorflow/core/framework/cancellation.h"

namespace tfswap {

using ::tensorflow::OpKernelContext;
using ::tensorflow::Tensor;

namespace {

int64_t NowNs() {
  return std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
}

bool IsCancelled(OpKernelContext* context) {
  return context->cancellation_manager() != nullptr &&
         context->cancellation_manager()->IsCancelled();
}

}  // namespace

FarBuffer::FarBuffer(CopyEngine* engine, std::string label, const Tensor& tensor, int returns,
                     int64_t next_use)
    : label(std::move(label)),
      dtype(tensor.dtype()),
      shape(tensor.shape()),
      bytes(tensor.TotalBytes()),
      engine_(engine),
      tensor_(tensor),
      returns_left_(returns),
      next_use_(next_use) {
  std::lock_guard<std::mutex> lock(engine_->mu_);
  ++engine_->stats_.buffers_alive;
}

FarBuffer::~FarBuffer() {
  {
    std::lock_guard<std::mutex> lock(engine_->mu_);
    --engine_->stats_.buffers_alive;
    engine_->UnparkLocked(this);
  }
  if (far_copy_ != nullptr) CopyEngine::host_pool()->Free(far_copy_, bytes);
}

CopyEngine::Worker::Worker(const char* name) {
  std::thread thread([this] {
    for (;;) {
      std::function<void()> job;
      {
        std::unique_lock<std::mutex> lock(mu_);
        wake_.wait(lock, [this] { return !jobs_.empty(); });
        job = std::move(jobs_.extract(jobs_.begin()).mapped());
      }
      job();
    }
  });
  pthread_setname_np(thread.native_handle(), name);
  thread.detach();
}

void CopyEngine::Worker::Schedule(int64_t place, std::function<void()> job) {
  {
    std::lock_guard<std::mutex> lock(mu_);
    jobs_.emplace(place, std::move(job));
  }
  wake_.notify_one();
}

bool CopyEngine::Worker::HasBefore(int64_t place) {
  std::lock_guard<std::mutex> lock(mu_);
  return !jobs_.empty() && jobs_.begin()->first < place;
}

CopyEngine::CopyEngine(DeviceAllocator* allocator)
    : allocator_(allocator), out_("tfswap_out"), in_("tfswap_in") {
  allocator_->budget()->SetReclaimer(this);
}

CopyEngine* CopyEngine::For(DeviceAllocator* allocator) {
  static std::mutex mu;
  static auto* engines = new std::map<DeviceAllocator*, CopyEngine*>();
  std::lock_guard<std::mutex> lock(mu);
  CopyEngine*& engine = (*engines)[allocator];
  if (engine == nullptr) engine = new CopyEngine(allocator);
  return engine;
}

HostPool* CopyEngine::host_pool() {
  static auto* pool = new HostPool();
  return pool;
}

void CopyEngine::Leave(const FarBufferPtr& buffer, Done done) {
  std::lock_guard<std::mutex> lock(mu_);
  StartLeaving(buffer, std::move(done));
}

// Called with mu_ held.
void CopyEngine::StartLeaving(const FarBufferPtr& buffer, Done done) {
  UnparkLocked(buffer.get());
  buffer->state_ = FarBuffer::State::kLeaving;
  bytes_leaving_.fetch_add(buffer->bytes);
  out_.Schedule(0, [this, buffer, done = std::move(done)] { CopyOut(buffer, done); });
}

void CopyEngine::CopyOut(const FarBufferPtr& buffer, const Done& done) {
  const int64_t start_ns = NowNs();
  absl::Status status;
  void* far_copy = nullptr;
  if (TakeFault("out")) {
    status = absl::InternalError(
        absl::StrCat("tfswap: swapping out '", buffer->label, "' failed: injected fault"));
  } else {
    far_copy = host_pool()->Allocate(buffer->bytes);
    far_memory_full_.store(far_copy == nullptr);
  }
  if (far_copy != nullptr) {
    const void* data = buffer->tensor_.data();
    CopyPastCache(far_copy, data, buffer->bytes);
    if (verify_.load()) buffer->checksum_ = Checksum(data, buffer->bytes);
    HoldForLink(start_ns, buffer->bytes);
  }

  Tensor given_up;
  Tensor kept;
  void* dead_copy = nullptr;
  std::vector<FarBuffer::Continuation> wanted_back;
  {
    std::lock_guard<std::mutex> lock(mu_);
    wanted_back.swap(buffer->wanted_back_);
    buffer->far_copy_ = far_copy;
    if (far_copy != nullptr) {
      ++stats_.copies_out;
      stats_.bytes_out += buffer->bytes;
      stats_.busy_out_ns += NowNs() - start_ns;
    } else {
      ++stats_.copies_declined;
    }
    if (far_copy == nullptr || !wanted_back.empty()) {
      buffer->state_ = FarBuffer::State::kHeld;
      kept = buffer->tensor_;
      // Whoever goes on now may be the step's last: nothing is to be left behind that one.
      if (buffer->returns_left_ <= 0) {
        buffer->tensor_ = Tensor();
        std::swap(dead_copy, buffer->far_copy_);
      }
    } else {
      buffer->state_ = FarBuffer::State::kFar;
      given_up = std::move(buffer->tensor_);
      buffer->tensor_ = Tensor();
    }
  }
  given_up = Tensor();
  // Only now: whoever waits for memory is to find it either on its way or free.
  bytes_leaving_.fetch_sub(buffer->bytes);
  if (dead_copy != nullptr) host_pool()->Free(dead_copy, buffer->bytes);
  for (const auto& continuation : wanted_back) continuation(status, kept);
  if (done) done(status);
}

void CopyEngine::Park(const FarBufferPtr& buffer) {
  std::lock_guard<std::mutex> lock(mu_);
  ParkLocked(buffer.get());
}

void CopyEngine::ParkLocked(FarBuffer* buffer) {
  buffer->parked_ = parked_.emplace(buffer->next_use_, buffer).second;
}

void CopyEngine::UnparkLocked(FarBuffer* buffer) {
  if (!buffer->parked_) return;
  parked_.erase({buffer->next_use_, buffer});
  buffer->parked_ = false;
}

void CopyEngine::Return(const FarBufferPtr& buffer, int64_t next_use, OpKernelContext* context,
                        std::function<void()> done) {
  Tensor tensor;
  {
    std::lock_guard<std::mutex> lock(mu_);
    const bool was_parked = buffer->parked_;
    UnparkLocked(buffer.get());
    const int64_t place = std::exchange(buffer->next_use_, next_use);
    switch (buffer->state_) {
      case FarBuffer::State::kFar:
        StartReturning(buffer, place, context, std::move(done));
        return;
      case FarBuffer::State::kLeaving:
        --buffer->returns_left_;
        buffer->wanted_back_.push_back(
            [context, done = std::move(done)](const absl::Status& status, const Tensor& kept) {
              if (status.ok()) {
                context->set_output(0, kept);
              } else {
                context->SetStatus(status);
              }
              done();
            });
        return;
      case FarBuffer::State::kHeld:
        tensor = buffer->tensor_;
        if (--buffer->returns_left_ <= 0) {
          buffer->tensor_ = Tensor();
        } else if (was_parked) {
          ParkLocked(buffer.get());
        }
        break;
    }
  }
  context->set_output(0, tensor);
  tensor = Tensor();
  done();
}

void CopyEngine::StartReturning(const FarBufferPtr& buffer, int64_t place, OpKernelContext* context,
                                std::function<void()> done) {
  in_.Schedule(place, [this, buffer, place, context, done = std::move(done)]() mutable {
    if (CopyIn(buffer, place, context)) {
      done();
    } else {
      StartReturning(buffer, place, context, std::move(done));
    }
  });
}

bool CopyEngine::CopyIn(const FarBufferPtr& buffer, int64_t place, OpKernelContext* context) {
  if (IsCancelled(context)) {
    context->SetStatus(absl::CancelledError(absl::StrCat("tfswap: the step was cancelled before '",
                                                         buffer->label, "' was swapped in")));
    return true;
  }
  if (TakeFault("in")) {
    context->SetStatus(absl::InternalError(
        absl::StrCat("tfswap: swapping in '", buffer->label, "' failed: injected fault")));
    return true;
  }
  KernelScope scope(KernelScope::Role::kSwapIn, context);
  SlabAllocator* slab = allocator_->slab();
  if (slab->active()) scope.planned = slab->Find(context->op_kernel());
  scope.give_way = [this, place] { return in_.HasBefore(place); };
  Tensor* output = nullptr;
  absl::Status status = context->allocate_output(0, buffer->shape, &output);
  if (scope.gave_way) return false;
  if (status.ok()) {
    copying_in_.fetch_add(1);
    status = Fill(output, buffer);
    copying_in_.fetch_sub(1);
  }
  if (!status.ok()) context->SetStatus(status);
  return true;
}

absl::Status CopyEngine::Fill(Tensor* output, const FarBufferPtr& buffer) {
  const int64_t start_ns = NowNs();
  CopyPastCache(output->data(), buffer->far_copy_, buffer->bytes);
  if (TakeFault("corrupt")) static_cast<char*>(output->data())[0] ^= 1;
  if (verify_.load() && Checksum(output->data(), buffer->bytes) != buffer->checksum_) {
    return absl::DataLossError(absl::StrCat(
        "tfswap: '", buffer->label, "' (", ReadableBytes(buffer->bytes),
        ") came back from far memory changed: its checksum differs from the one taken when it "
        "left. Suspect the host's memory."));
  }
  HoldForLink(start_ns, buffer->bytes);
  void* dead_copy = nullptr;
  {
    std::lock_guard<std::mutex> lock(mu_);
    ++stats_.copies_in;
    stats_.bytes_in += buffer->bytes;
    stats_.busy_in_ns += NowNs() - start_ns;
    if (--buffer->returns_left_ <= 0) std::swap(dead_copy, buffer->far_copy_);
  }
  if (dead_copy != nullptr) host_pool()->Free(dead_copy, buffer->bytes);
  return absl::OkStatus();
}

int64_t CopyEngine::Reclaim(int64_t bytes) {
  int64_t started = 0;
  std::vector<Tensor> given_up;
  std::vector<FarBufferPtr> chosen;  // outlives the lock: the last reference may be among them
  std::lock_guard<std::mutex> lock(mu_);
  for (auto it = parked_.rbegin(); it != parked_.rend() && started < bytes; ++it) {
    // A buffer that somebody still reads would not become free.
    if (!it->second->tensor_.RefCountIsOne()) continue;
    FarBufferPtr buffer = it->second->weak_from_this().lock();
    if (buffer == nullptr) continue;
    started += buffer->bytes;
    chosen.push_back(std::move(buffer));
  }
  for (const FarBufferPtr& buffer : chosen) {
    if (buffer->far_copy_ != nullptr) {
      UnparkLocked(buffer.get());
      buffer->state_ = FarBuffer::State::kFar;
      given_up.push_back(std::move(buffer->tensor_));
      buffer->tensor_ = Tensor();
    } else {
      StartLeaving(buffer, nullptr);
    }
  }
  return started;
}

std::string CopyEngine::Hindrance() const {
  if (!far_memory_full_.load()) return "";
  const HostPoolStats far = host_pool()->Stats();
  return "Far memory is full (" + ReadableBytes(far.bytes_in_use) + " of host_limit " +
         ReadableBytes(far.limit_bytes) + "), so nothing more could be moved: raise host_limit.";
}

void CopyEngine::EmulateLink(double bytes_per_s, int64_t latency_ns) {
  link_ns_per_byte_.store(bytes_per_s > 0 ? 1e9 / bytes_per_s : 0);
  link_latency_ns_.store(bytes_per_s > 0 ? latency_ns : 0);
}

void CopyEngine::HoldForLink(int64_t start_ns, int64_t bytes) const {
  const double ns_per_byte = link_ns_per_byte_.load();
  if (ns_per_byte <= 0) return;
  const int64_t due_ns = start_ns + link_latency_ns_.load() +
                         static_cast<int64_t>(ns_per_byte * static_cast<double>(bytes));
  const int64_t left_ns = due_ns - NowNs();
  if (left_ns > 0) std::this_thread::sleep_for(std::chrono::nanoseconds(left_ns));
}

void CopyEngine::InjectFault(std::string kind) {
  std::lock_guard<std::mutex> lock(mu_);
  fault_ = std::move(kind);
}

bool CopyEngine::TakeFault(const char* kind) {
  std::lock_guard<std::mutex> lock(mu_);
  return fault_ == kind;
}

CopyStats CopyEngine::Stats() const {
  std::lock_guard<std::mutex> lock(mu_);
  return stats_;
}

void CopyEngine::ClearStats() {
  std::lock_guard<std::mutex> lock(mu_);
  const int64_t alive = stats_.buffers_alive;
  stats_ = CopyStats();
  stats_.buffers_alive = alive;
}

}  // namespace tfswap
