#include "kernels/copy_engine.h"

#include <map>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "allocator/kernel_scope.h"
#include "core/readable_bytes.h"
#include "kernels/thread_copy_engine.h"
#include "tensorflow/core/framework/cancellation.h"

namespace tfswap {

using ::tensorflow::OpKernelContext;
using ::tensorflow::Tensor;

namespace {

struct Engines {
  std::mutex mu;
  std::map<DeviceAllocator*, CopyEngine*> by_device;
};

Engines& AllEngines() {
  static auto* engines = new Engines();
  return *engines;
}

}  // namespace

FarBuffer::FarBuffer(CopyEngine* engine, std::string label, const Tensor& tensor, int returns,
                     int64_t next_use, FarWish wish)
    : label(std::move(label)),
      dtype(tensor.dtype()),
      shape(tensor.shape()),
      bytes(tensor.TotalBytes()),
      wish(wish),
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
  engine_->DropFarCopy(&far_copy_);
}

CopyEngine::CopyEngine(DeviceAllocator* allocator) : allocator_(allocator) {
  allocator_->budget()->SetReclaimer(this);
  Engines& engines = AllEngines();
  std::lock_guard<std::mutex> lock(engines.mu);
  engines.by_device[allocator] = this;
}

CopyEngine* CopyEngine::For(DeviceAllocator* allocator) {
  static std::mutex making;
  std::lock_guard<std::mutex> one(making);
  {
    Engines& engines = AllEngines();
    std::lock_guard<std::mutex> lock(engines.mu);
    const auto known = engines.by_device.find(allocator);
    if (known != engines.by_device.end()) return known->second;
  }
  return allocator->bfc() == nullptr ? nullptr : new ThreadCopyEngine(allocator);
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
  for (const FarBufferPtr& buffer : chosen) EvictLocked(buffer, &given_up);
  return started;
}

void CopyEngine::Return(const FarBufferPtr& buffer, int64_t next_use, OpKernelContext* context,
                        std::function<void()> done) {
  Tensor tensor;
  {
    std::unique_lock<std::mutex> lock(mu_);
    const bool was_parked = buffer->parked_;
    UnparkLocked(buffer.get());
    const int64_t place = std::exchange(buffer->next_use_, next_use);
    switch (buffer->state_) {
      case FarBuffer::State::kFar:
        lock.unlock();
        if (FillsAtOnce() && Fetch(buffer, place, /*patient=*/false, context)) {
          done();
        } else {
          FetchLater(buffer, place, context, std::move(done));
        }
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

void CopyEngine::FetchLater(const FarBufferPtr& buffer, int64_t place, OpKernelContext* context,
                            std::function<void()> done) {
  FillerOf(*buffer, place)
      ->Schedule(place, [this, buffer, place, context, done = std::move(done)]() mutable {
        if (Fetch(buffer, place, /*patient=*/true, context)) {
          done();
        } else {
          FetchLater(buffer, place, context, std::move(done));
        }
      });
}

bool CopyEngine::Fetch(const FarBufferPtr& buffer, int64_t place, bool patient,
                       OpKernelContext* context) {
  if (context->cancellation_manager() != nullptr &&
      context->cancellation_manager()->IsCancelled()) {
    context->SetStatus(absl::CancelledError(absl::StrCat("tfswap: the step was cancelled before '",
                                                         buffer->label, "' was swapped in")));
    return true;
  }
  if (TakeFault("in")) {
    context->SetStatus(Failed("swapping in", *buffer, "injected fault"));
    return true;
  }
  KernelScope scope(KernelScope::Role::kSwapIn, context);
  SlabAllocator* slab = allocator_->slab();
  if (slab->active()) scope.planned = slab->Find(context->op_kernel());
  scope.now_or_never = !patient;
  if (patient) {
    scope.give_way = [filler = FillerOf(*buffer, place), place] {
      return filler->HasBefore(place);
    };
  }
  Tensor* output = nullptr;
  absl::Status status = context->allocate_output(0, buffer->shape, &output);
  if (scope.gave_way) return false;
  if (status.ok()) status = Fill(output, buffer);
  if (!status.ok()) context->SetStatus(status);
  return true;
}

void CopyEngine::Filled(FarBuffer* buffer, int64_t busy_ns) {
  FarCopy unwanted;
  {
    std::lock_guard<std::mutex> lock(mu_);
    ++stats_.copies_in;
    stats_.bytes_in += buffer->bytes;
    stats_.busy_in_ns += busy_ns;
    if (--buffer->returns_left_ <= 0) std::swap(unwanted, buffer->far_copy_);
  }
  DropFarCopy(&unwanted);
}

absl::StatusOr<LinkTimes> CopyEngine::MeasureLink(int64_t, int) {
  return absl::UnimplementedError("tfswap: only a card's link is measured by its copies");
}

void CopyEngine::InjectFault(std::string kind) {
  std::lock_guard<std::mutex> lock(mu_);
  fault_ = std::move(kind);
}

bool CopyEngine::TakeFault(const char* kind) {
  std::lock_guard<std::mutex> lock(mu_);
  return fault_ == kind;
}

absl::Status CopyEngine::Failed(const char* doing, const FarBuffer& buffer,
                                const std::string& why) const {
  return absl::InternalError(
      absl::StrCat("tfswap: ", doing, " '", buffer.label, "' failed: ", why));
}

absl::Status CopyEngine::Changed(const FarBuffer& buffer) const {
  return absl::DataLossError(absl::StrCat(
      "tfswap: '", buffer.label, "' (", ReadableBytes(buffer.bytes),
      ") came back from far memory changed: its checksum differs from the one taken when it left. "
      "Suspect the host's memory."));
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
