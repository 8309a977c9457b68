#include "kernels/thread_copy_engine.h"

#include <chrono>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "core/copy.h"
#include "core/now.h"

namespace tfswap {

using ::tensorflow::Tensor;

HostPool* ThreadCopyEngine::host_pool() {
  static auto* pool = new HostPool();
  return pool;
}

void ThreadCopyEngine::Leave(const FarBufferPtr& buffer, Done done) {
  std::lock_guard<std::mutex> lock(mu_);
  StartLeaving(buffer, std::move(done));
}

// Called with mu_ held.
void ThreadCopyEngine::StartLeaving(const FarBufferPtr& buffer, Done done) {
  UnparkLocked(buffer.get());
  buffer->state_ = FarBuffer::State::kLeaving;
  bytes_leaving_.fetch_add(buffer->bytes);
  out_.Schedule(0, [this, buffer, done = std::move(done)] { CopyOut(buffer, done); });
}

void ThreadCopyEngine::CopyOut(const FarBufferPtr& buffer, const Done& done) {
  const int64_t start_ns = NowNs();
  absl::Status status;
  void* far_copy = nullptr;
  if (TakeFault("out")) {
    status = Failed("swapping out", *buffer, "injected fault");
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

void ThreadCopyEngine::EvictLocked(const FarBufferPtr& buffer, std::vector<Tensor>* given_up) {
  if (buffer->far_copy_ == nullptr) {
    StartLeaving(buffer, nullptr);
    return;
  }
  UnparkLocked(buffer.get());
  buffer->state_ = FarBuffer::State::kFar;
  given_up->push_back(std::move(buffer->tensor_));
  buffer->tensor_ = Tensor();
}

absl::Status ThreadCopyEngine::Fill(Tensor* output, const FarBufferPtr& buffer) {
  copying_in_.fetch_add(1);
  const absl::Status status = CopyIn(output, buffer);
  copying_in_.fetch_sub(1);
  return status;
}

absl::Status ThreadCopyEngine::CopyIn(Tensor* output, const FarBufferPtr& buffer) {
  const int64_t start_ns = NowNs();
  CopyPastCache(output->data(), buffer->far_copy_, buffer->bytes);
  if (TakeFault("corrupt")) static_cast<char*>(output->data())[0] ^= 1;
  if (verify_.load() && Checksum(output->data(), buffer->bytes) != buffer->checksum_) {
    return Changed(*buffer);
  }
  HoldForLink(start_ns, buffer->bytes);
  host_pool()->Free(Filled(buffer.get(), NowNs() - start_ns), buffer->bytes);
  return absl::OkStatus();
}

void ThreadCopyEngine::EmulateLink(double bytes_per_s, int64_t latency_ns) {
  link_ns_per_byte_.store(bytes_per_s > 0 ? 1e9 / bytes_per_s : 0);
  link_latency_ns_.store(bytes_per_s > 0 ? latency_ns : 0);
}

void ThreadCopyEngine::HoldForLink(int64_t start_ns, int64_t bytes) const {
  const double ns_per_byte = link_ns_per_byte_.load();
  if (ns_per_byte <= 0) return;
  const int64_t due_ns = start_ns + link_latency_ns_.load() +
                         static_cast<int64_t>(ns_per_byte * static_cast<double>(bytes));
  const int64_t left_ns = due_ns - NowNs();
  if (left_ns > 0) std::this_thread::sleep_for(std::chrono::nanoseconds(left_ns));
}

}  // namespace tfswap
