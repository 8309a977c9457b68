#include "kernels/copy_engine.h"

#include <algorithm>
#include <limits>
#include <map>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "allocator/kernel_scope.h"
#include "core/memory/copy.h"
#include "core/util/faults.h"
#include "core/util/readable_bytes.h"
#include "kernels/thread_copy_engine.h"
#include "tensorflow/core/common_runtime/dma_helper.h"
#include "tensorflow/core/framework/cancellation.h"

namespace tfswap {

using ::tensorflow::OpKernelContext;
using ::tensorflow::Tensor;

namespace {

constexpr char kCameBackChanged[] = "came back from far memory changed: ";
constexpr char kSuspectMemory[] = ". Suspect the host's memory.";

// Smaller elements of lists stay on the device: what they need far away is not much less.
constexpr int64_t kMinElementBytes = 1024;
// Smaller buffers leave together: otherwise each small allocation would have to evict one.
constexpr int64_t kTogetherBytes = 64 << 10;
constexpr int kManyReturns = 1 << 30;
constexpr int64_t kNeverUsed = std::numeric_limits<int64_t>::max();

struct Engines {
  std::mutex mu;
  std::map<DeviceAllocator*, CopyEngine*> by_device;
  std::map<DeviceAllocator*, absl::Status> problems;
};

Engines& AllEngines() {
  static auto* engines = new Engines();
  return *engines;
}

}  // namespace

FarBuffer::FarBuffer(CopyEngine* engine, std::string label, const Tensor& tensor, int returns,
                     int64_t next_use, PlacementRequest request)
    : label(std::move(label)),
      dtype(tensor.dtype()),
      shape(tensor.shape()),
      bytes(tensor.TotalBytes()),
      request(request),
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
    engine_->RemoveEvictableLocked(this);
    const auto element = engine_->elements_.find(element_memory_);
    if (element != engine_->elements_.end() && element->second == this) {
      engine_->elements_.erase(element);
    }
  }
  engine_->Record(*this, StepRecorder::ElementEvent::kEnds, tensor_);
  engine_->DropFarCopy(&far_copy_);
}

CopyEngine::CopyEngine(DeviceAllocator* allocator)
    : allocator_(allocator), variables_(allocator, this) {
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
  return allocator->OnHost() ? new ThreadCopyEngine(allocator) : nullptr;
}

void CopyEngine::SetProblem(DeviceAllocator* allocator, const absl::Status& problem) {
  Engines& engines = AllEngines();
  std::lock_guard<std::mutex> lock(engines.mu);
  engines.problems[allocator] = problem;
}

absl::Status CopyEngine::ProblemOf(DeviceAllocator* allocator) {
  Engines& engines = AllEngines();
  std::lock_guard<std::mutex> lock(engines.mu);
  const auto problem = engines.problems.find(allocator);
  return problem == engines.problems.end() ? absl::OkStatus() : problem->second;
}

void CopyEngine::MakeEvictable(const FarBufferPtr& buffer) {
  std::lock_guard<std::mutex> lock(mu_);
  MakeEvictableLocked(buffer.get());
}

void CopyEngine::MakeEvictableLocked(FarBuffer* buffer) {
  buffer->evictable_ = evictable_.emplace(buffer->next_use_, buffer).second;
}

void CopyEngine::RemoveEvictableLocked(FarBuffer* buffer) {
  if (!buffer->evictable_) return;
  evictable_.erase({buffer->next_use_, buffer});
  buffer->evictable_ = false;
}

int64_t CopyEngine::SetNextUseLocked(FarBuffer* buffer, int64_t next_use) {
  const bool was_evictable = buffer->evictable_;
  RemoveEvictableLocked(buffer);
  const int64_t before = std::exchange(buffer->next_use_, next_use);
  if (was_evictable) MakeEvictableLocked(buffer);
  return before;
}

int64_t CopyEngine::Reclaim(int64_t bytes) {
  const int64_t started = ReclaimBuffers(bytes);
  return started < bytes ? started + variables_.Reclaim(bytes - started) : started;
}

int64_t CopyEngine::ReclaimBuffers(int64_t bytes) {
  int64_t started = 0;
  Evicted evicted;
  std::vector<FarBufferPtr> chosen;  // outlives the lock: the last reference may be among them
  std::unique_lock<std::mutex> lock(mu_);
  for (auto it = evictable_.rbegin(); it != evictable_.rend(); ++it) {
    if (started >= bytes && started + it->second->bytes > kTogetherBytes) break;
    // A buffer that is still being read would not become free.
    if (!it->second->tensor_.RefCountIsOne()) continue;
    FarBufferPtr buffer = it->second->weak_from_this().lock();
    if (buffer == nullptr) continue;
    started += buffer->bytes;
    chosen.push_back(std::move(buffer));
  }
  for (const FarBufferPtr& buffer : chosen) {
    RemoveEvictableLocked(buffer.get());
    if (buffer->far_copy_.held()) {
      SetFarLocked(buffer.get(), &evicted.given_up);
    } else {
      EvictLocked(buffer, &evicted);
    }
  }
  lock.unlock();
  for (const FarBufferPtr& buffer : evicted.to_copy) CopyEvicted(buffer);
  return started;
}

void CopyEngine::SetLeavingLocked(FarBuffer* buffer) {
  buffer->state_ = FarBuffer::State::kLeaving;
  bytes_leaving_.fetch_add(buffer->bytes);
}

void CopyEngine::StartSwapOutLocked(FarBuffer* buffer, Worker* worker,
                                    std::function<void()> copy_out) {
  SetLeavingLocked(buffer);
  worker->Schedule(0, std::move(copy_out));
}

void CopyEngine::ScheduleVariableSwapOut(int64_t bytes, FarTier tier, std::function<void()> move) {
  if (MovesAtOnce(tier)) return move();
  bytes_leaving_.fetch_add(bytes);
  Leaver(tier)->Schedule(0, [this, bytes, move = std::move(move)] {
    move();
    bytes_leaving_.fetch_sub(bytes);
  });
}

void CopyEngine::SetFarLocked(FarBuffer* buffer, std::vector<Tensor>* given_up) {
  buffer->state_ = FarBuffer::State::kFar;
  if (buffer->far_copy_.kept_bytes > 0) return;
  Record(*buffer, StepRecorder::ElementEvent::kLeaves, buffer->tensor_);
  given_up->push_back(std::move(buffer->tensor_));
  buffer->tensor_ = Tensor();
}

void CopyEngine::EndSwapOut(FarBuffer* buffer, FarCopy far_copy, const absl::Status& status,
                            int64_t busy_ns) {
  std::vector<Tensor> given_up;
  Tensor kept;
  const bool copied = far_copy.held();
  FarCopy dead_copy;
  std::vector<FarBuffer::WaitingSwapIn> waiting_swap_ins;
  int64_t released_bytes;
  {
    std::lock_guard<std::mutex> lock(mu_);
    waiting_swap_ins.swap(buffer->waiting_swap_ins_);
    released_bytes = std::exchange(buffer->released_bytes_, 0);
    if (copied) {
      ++stats_.copies_out;
      stats_.bytes_out += buffer->bytes - far_copy.kept_bytes;
      stats_.busy_out_ns += busy_ns;
    } else {
      ++stats_.copies_declined;
    }
    buffer->far_copy_ = std::move(far_copy);
    if (released_bytes > 0) {
      SetFarLocked(buffer, &given_up);
      buffer->returns_left_ += static_cast<int>(waiting_swap_ins.size());
    } else if (!copied || !waiting_swap_ins.empty()) {
      buffer->state_ = FarBuffer::State::kHeld;
      kept = buffer->tensor_;
      // A waiting swap-in may be the last one of the step: leave nothing behind.
      if (buffer->returns_left_ <= 0) {
        buffer->tensor_ = Tensor();
        std::swap(dead_copy, buffer->far_copy_);
      } else if (copied && buffer->element_memory_ != nullptr) {
        MakeEvictableLocked(buffer);
      }
    } else {
      SetFarLocked(buffer, &given_up);
    }
  }
  given_up.clear();
  // Only now, so that a waiting allocation sees the memory either as leaving or as free.
  bytes_leaving_.fetch_add(released_bytes - buffer->bytes);
  DropFarCopy(&dead_copy);
  for (FarBuffer::WaitingSwapIn& each : waiting_swap_ins) {
    if (released_bytes > 0 && !each.by_kernel) {
      FetchLater(buffer->shared_from_this(), each.place, Manner::kInChunks, each.context,
                 std::move(each.done));
      continue;
    }
    if (!status.ok()) {
      each.context->SetStatus(status);
    } else if (released_bytes == 0) {
      each.context->set_output(0, kept);
    }
    each.done();
  }
}

void CopyEngine::ReleaseEnd(FarBuffer* buffer, int64_t kept_bytes, int references) {
  tensorflow::TensorBuffer* memory = tensorflow::DMAHelper::buffer(&buffer->tensor_);
  if (memory->root_buffer() != memory) return;
  int64_t bytes = 0;
  {
    std::lock_guard<std::mutex> lock(mu_);
    if (buffer->released_bytes_ == 0) {
      if (!buffer->waiting_swap_ins_.empty() || memory->RefCount() != references) return;
    }
    bytes = allocator_->ReleaseEnd(memory->data(), kept_bytes);
    buffer->released_bytes_ += bytes;
  }
  bytes_leaving_.fetch_add(-bytes);
}

FarBufferPtr CopyEngine::HoldElement(std::string label, const Tensor& tensor, int64_t next_use) {
  const void* memory = tensorflow::DMAHelper::buffer(&tensor);
  FarBufferPtr known;  // outlives the lock: it may be the last reference
  {
    std::lock_guard<std::mutex> lock(mu_);
    const auto found = elements_.find(memory);
    if (found != elements_.end()) known = found->second->weak_from_this().lock();
    if (known != nullptr && known->tensor_.SharesBufferWith(tensor) &&
        known->shape == tensor.shape() && known->dtype == tensor.dtype()) {
      known->later_use_ = std::max(known->next_use_, next_use);
      SetNextUseLocked(known.get(), std::min(known->next_use_, next_use));
      return known;
    }
  }
  auto buffer = std::make_shared<FarBuffer>(this, std::move(label), tensor, kManyReturns, next_use,
                                            PlacementRequest());
  buffer->later_use_ = kNeverUsed;
  if (buffer->bytes < kMinElementBytes) return buffer;
  std::lock_guard<std::mutex> lock(mu_);
  buffer->element_ = ++elements_made_;
  buffer->element_memory_ = memory;
  elements_[memory] = buffer.get();
  MakeEvictableLocked(buffer.get());
  return buffer;
}

bool CopyEngine::ReadElement(const FarBufferPtr& buffer, Tensor* output, absl::Status* status) {
  Tensor tensor;
  bool is_far;
  {
    std::lock_guard<std::mutex> lock(mu_);
    if (buffer->released_bytes_ > 0) return false;
    SetNextUseLocked(buffer.get(), buffer->later_use_);
    is_far = buffer->state_ == FarBuffer::State::kFar;
    if (!is_far) tensor = buffer->tensor_;
  }
  if (is_far) return Fill(output, buffer, status);
  CopyPastCache(output->data(), tensor.data(), buffer->bytes);
  return true;
}

bool CopyEngine::MustRestore(const FarBufferPtr& buffer, int64_t next_use,
                             FarBuffer::WaitingSwapIn* swap_in) {
  Tensor tensor;
  {
    std::lock_guard<std::mutex> lock(mu_);
    if (next_use == 0) next_use = buffer->later_use_;
    swap_in->place = SetNextUseLocked(buffer.get(), next_use);
    switch (buffer->state_) {
      case FarBuffer::State::kFar:
        return true;
      case FarBuffer::State::kLeaving:
        --buffer->returns_left_;
        buffer->waiting_swap_ins_.push_back(std::move(*swap_in));
        return false;
      case FarBuffer::State::kHeld:
        tensor = buffer->tensor_;
        if (--buffer->returns_left_ <= 0) {
          RemoveEvictableLocked(buffer.get());
          buffer->tensor_ = Tensor();
        }
        break;
    }
  }
  swap_in->context->set_output(0, tensor);
  tensor = Tensor();
  swap_in->done();
  return false;
}

void CopyEngine::SwapIn(const FarBufferPtr& buffer, int64_t next_use, OpKernelContext* context,
                        std::function<void()> done) {
  FarBuffer::WaitingSwapIn swap_in{/*place=*/0, context, std::move(done), /*by_kernel=*/false};
  if (!MustRestore(buffer, next_use, &swap_in)) return;
  if (FillsAtOnce(*buffer) && Fetch(buffer, swap_in.place, Manner::kNow, context)) {
    swap_in.done();
  } else {
    FetchLater(buffer, swap_in.place, Manner::kInChunks, context, std::move(swap_in.done));
  }
}

void CopyEngine::SwapInByKernel(const FarBufferPtr& buffer, int64_t next_use,
                                OpKernelContext* context) {
  bool ended = false;
  const auto done = [this, &ended] {
    std::lock_guard<std::mutex> lock(mu_);
    ended = true;
    handed_over_.notify_all();
  };
  FarBuffer::WaitingSwapIn swap_in{/*place=*/0, context, done, /*by_kernel=*/true};
  if (!MustRestore(buffer, next_use, &swap_in)) {
    std::unique_lock<std::mutex> lock(mu_);
    handed_over_.wait(lock, [&ended] { return ended; });
    // It is far if some of its memory was released before this swap-in began.
    if (!context->status().ok() || context->mutable_output(0) != nullptr) return;
  }
  Restore(buffer, context);
}

Worker* CopyEngine::SwapInWorker(const FarBuffer& buffer, int64_t place) {
  const bool planned = place == 0;
  return planned && buffer.far_copy_.tier == FarTier::kFile ? &file_in_ : &in_;
}

void CopyEngine::FetchLater(const FarBufferPtr& buffer, int64_t place, Manner manner,
                            OpKernelContext* context, std::function<void()> done) {
  SwapInWorker(*buffer, place)
      ->Schedule(place, [this, buffer, place, manner, context, done = std::move(done)]() mutable {
        if (Fetch(buffer, place, manner, context)) {
          done();
        } else {
          FetchLater(buffer, place, Manner::kWhole, context, std::move(done));
        }
      });
}

bool CopyEngine::Restore(const FarBufferPtr& buffer, OpKernelContext* context) {
  if (context->cancellation_manager() != nullptr &&
      context->cancellation_manager()->IsCancelled()) {
    context->SetStatus(absl::CancelledError(absl::StrCat("tfswap: the step was cancelled before '",
                                                         buffer->label, "' was swapped in")));
    return true;
  }
  if (Faults::Strikes(Fault::kCopyInFails)) {
    context->SetStatus(Failed("swapping in", *buffer, "injected fault"));
    return true;
  }
  Tensor* output = nullptr;
  absl::Status status = context->allocate_output(0, buffer->shape, &output);
  if (KernelScope::current != nullptr && KernelScope::current->gave_way) return false;
  if (status.ok()) {
    const CopyingIn copying(this);
    if (!Fill(output, buffer, &status)) {
      delete context->release_output(0).tensor;
      return false;
    }
    Record(*buffer, StepRecorder::ElementEvent::kReturned, *output);
  }
  if (!status.ok()) context->SetStatus(status);
  return true;
}

bool CopyEngine::Fetch(const FarBufferPtr& buffer, int64_t place, Manner manner,
                       OpKernelContext* context) {
  KernelScope scope(KernelScope::Role::kSwapIn, context);
  SlabAllocator* slab = allocator_->slab();
  if (slab->active()) scope.planned = slab->Find(context->op_kernel());
  if (manner == Manner::kNow) scope.effort = KernelScope::Effort::kEvict;
  // On-demand swap-ins are not filled in chunks: the plan did not place them.
  if (manner == Manner::kInChunks && place == 0) scope.pays = FirstChunk(*buffer);
  if (manner != Manner::kNow) {
    scope.give_way = [filler = SwapInWorker(*buffer, place), place] {
      return filler->HasBefore(place);
    };
  }
  return Restore(buffer, context);
}

void CopyEngine::Record(const FarBuffer& buffer, StepRecorder::ElementEvent event,
                        const Tensor& tensor) const {
  if (buffer.element_ > 0) allocator_->recorder()->Element(buffer.element_, event, tensor);
}

void CopyEngine::Filled(FarBuffer* buffer, int64_t busy_ns) {
  FarCopy unwanted;
  Tensor kept;
  {
    std::lock_guard<std::mutex> lock(mu_);
    ++stats_.copies_in;
    stats_.bytes_in += buffer->bytes - buffer->far_copy_.kept_bytes;
    stats_.busy_in_ns += busy_ns;
    if (--buffer->returns_left_ <= 0) {
      std::swap(unwanted, buffer->far_copy_);
      std::swap(kept, buffer->tensor_);
    }
  }
  DropFarCopy(&unwanted);
}

void CopyEngine::CountCopy(bool out, int64_t bytes, int64_t busy_ns) {
  std::lock_guard<std::mutex> lock(mu_);
  ++(out ? stats_.copies_out : stats_.copies_in);
  (out ? stats_.bytes_out : stats_.bytes_in) += bytes;
  (out ? stats_.busy_out_ns : stats_.busy_in_ns) += busy_ns;
}

absl::StatusOr<LinkTimes> CopyEngine::MeasureLink(int64_t, int) {
  return absl::UnimplementedError("tfswap: the link can be measured on a GPU only");
}

absl::Status CopyEngine::Failed(const char* doing, const FarBuffer& buffer,
                                const std::string& why) const {
  return absl::InternalError(
      absl::StrCat("tfswap: ", doing, " '", buffer.label, "' failed: ", why));
}

absl::Status CopyEngine::Changed(const FarBuffer& buffer, const std::string& why) const {
  return absl::DataLossError(absl::StrCat("tfswap: '", buffer.label, "' (",
                                          ReadableBytes(buffer.bytes), ") ", kCameBackChanged, why,
                                          kSuspectMemory));
}

absl::Status CopyEngine::VariableFailed(const char* doing, const std::string& why) {
  return absl::InternalError(absl::StrCat("tfswap: ", doing, " a variable failed: ", why));
}

absl::Status CopyEngine::VariableChanged(int64_t bytes, const std::string& why) {
  return absl::DataLossError(absl::StrCat("tfswap: a variable of ", ReadableBytes(bytes), " ",
                                          kCameBackChanged, why, kSuspectMemory));
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
