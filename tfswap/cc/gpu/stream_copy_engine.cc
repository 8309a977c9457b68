#include "gpu/stream_copy_engine.h"

#include <chrono>
#include <thread>
#include <utility>

#include "allocator/kernel_scope.h"
#include "core/copy.h"

namespace tfswap {

using ::tensorflow::OpKernelContext;
using ::tensorflow::Tensor;

namespace {

constexpr auto kNap = std::chrono::milliseconds(1);

}  // namespace

StreamCopyEngine::StreamCopyEngine(DeviceAllocator* allocator, CudaCard* card,
                                   HazardTracker* tracker)
    : CopyEngine(allocator),
      card_(card),
      tracker_(tracker),
      far_memory_({[card](void* block, int64_t bytes) { return card->Pin(block, bytes).ok(); },
                   [card, tracker](void* block, int64_t bytes) {
                     // Only here the host waits: far memory goes back to the system.
                     while (!tracker->IsIdle(block, bytes) && card->status().ok()) {
                       std::this_thread::sleep_for(kNap);
                     }
                     card->Unpin(block);
                   }}),
      late_("tfswap_late") {}

void StreamCopyEngine::Leave(const FarBufferPtr& buffer, Done done) {
  std::vector<Tensor> given_up;
  absl::Status status;
  {
    std::lock_guard<std::mutex> lock(mu_);
    status = SendLocked(buffer, &given_up);
  }
  given_up.clear();
  done(status);
}

void StreamCopyEngine::EvictLocked(const FarBufferPtr& buffer, std::vector<Tensor>* given_up) {
  UnparkLocked(buffer.get());
  if (buffer->far_copy_ != nullptr) {
    buffer->state_ = FarBuffer::State::kFar;
    given_up->push_back(std::move(buffer->tensor_));
    buffer->tensor_ = Tensor();
    return;
  }
  // A failure is told where the card's status is asked for: at the next swap.
  (void)SendLocked(buffer, given_up);
}

absl::Status StreamCopyEngine::SendLocked(const FarBufferPtr& buffer,
                                          std::vector<Tensor>* given_up) {
  if (TakeFaultLocked("out")) return Failed("swapping out", *buffer, "injected fault");
  void* far_copy = far_memory_.Allocate(buffer->bytes);
  far_memory_full_.store(far_copy == nullptr);
  if (far_copy == nullptr) {
    ++stats_.copies_declined;
    return absl::OkStatus();
  }
  if (!tracker_->CopyOut(far_copy, buffer->tensor_.data(), buffer->bytes)) {
    far_memory_.Free(far_copy, buffer->bytes);
    return Failed("swapping out", *buffer, std::string(card_->status().message()));
  }
  if (verify_.load()) {
    card_->Finish(Queue::kOut);
    buffer->checksum_ = Checksum(far_copy, buffer->bytes);
  }
  ++stats_.copies_out;
  stats_.bytes_out += buffer->bytes;
  buffer->far_copy_ = far_copy;
  buffer->state_ = FarBuffer::State::kFar;
  given_up->push_back(std::move(buffer->tensor_));
  buffer->tensor_ = Tensor();
  return absl::OkStatus();
}

void StreamCopyEngine::Return(const FarBufferPtr& buffer, int64_t next_use,
                              OpKernelContext* context, std::function<void()> done) {
  Tensor tensor;
  {
    std::unique_lock<std::mutex> lock(mu_);
    const bool was_parked = buffer->parked_;
    UnparkLocked(buffer.get());
    const int64_t place = std::exchange(buffer->next_use_, next_use);
    if (buffer->state_ == FarBuffer::State::kFar) {
      lock.unlock();
      if (Fetch(buffer, place, /*patient=*/false, context)) {
        done();
      } else {
        FetchLater(buffer, place, context, std::move(done));
      }
      return;
    }
    tensor = buffer->tensor_;
    if (--buffer->returns_left_ <= 0) {
      buffer->tensor_ = Tensor();
    } else if (was_parked) {
      ParkLocked(buffer.get());
    }
  }
  context->set_output(0, tensor);
  tensor = Tensor();
  done();
}

void StreamCopyEngine::FetchLater(const FarBufferPtr& buffer, int64_t place,
                                  OpKernelContext* context, std::function<void()> done) {
  late_.Schedule(place, [this, buffer, place, context, done = std::move(done)]() mutable {
    if (Fetch(buffer, place, /*patient=*/true, context)) {
      done();
    } else {
      FetchLater(buffer, place, context, std::move(done));
    }
  });
}

bool StreamCopyEngine::Fetch(const FarBufferPtr& buffer, int64_t place, bool patient,
                             OpKernelContext* context) {
  if (IsCancelled(context)) {
    context->SetStatus(Cancelled(*buffer));
    return true;
  }
  if (TakeFault("in")) {
    context->SetStatus(Failed("swapping in", *buffer, "injected fault"));
    return true;
  }
  KernelScope scope(KernelScope::Role::kSwapIn, context);
  scope.now_or_never = !patient;
  if (patient) scope.give_way = [this, place] { return late_.HasBefore(place); };
  Tensor* output = nullptr;
  absl::Status status = context->allocate_output(0, buffer->shape, &output);
  if (scope.gave_way) return false;
  if (status.ok()) status = Fill(output, buffer);
  if (!status.ok()) context->SetStatus(status);
  return true;
}

absl::Status StreamCopyEngine::Fill(Tensor* output, const FarBufferPtr& buffer) {
  if (verify_.load() && Checksum(buffer->far_copy_, buffer->bytes) != buffer->checksum_) {
    return Changed(*buffer);
  }
  if (TakeFault("corrupt")) static_cast<char*>(buffer->far_copy_)[0] ^= 1;
  if (!tracker_->CopyIn(output->data(), buffer->far_copy_, buffer->bytes)) {
    return Failed("swapping in", *buffer, std::string(card_->status().message()));
  }
  if (verify_.load()) {
    card_->Finish(Queue::kIn);
    if (Checksum(buffer->far_copy_, buffer->bytes) != buffer->checksum_) return Changed(*buffer);
  }
  void* dead_copy = nullptr;
  {
    std::lock_guard<std::mutex> lock(mu_);
    ++stats_.copies_in;
    stats_.bytes_in += buffer->bytes;
    if (--buffer->returns_left_ <= 0) std::swap(dead_copy, buffer->far_copy_);
  }
  // At once, though it is still being read: whoever copies into it next waits on the card.
  if (dead_copy != nullptr) far_memory_.Free(dead_copy, buffer->bytes);
  return absl::OkStatus();
}

}  // namespace tfswap
