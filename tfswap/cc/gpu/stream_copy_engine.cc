#include "gpu/stream_copy_engine.h"

#include <chrono>
#include <thread>
#include <utility>

#include "core/copy.h"

namespace tfswap {

using ::tensorflow::Tensor;

namespace {

constexpr auto kNap = std::chrono::milliseconds(1);
// Pinning takes the driver's locks, however small a block is.
constexpr int64_t kArenaBytes = int64_t{64} << 20;

}  // namespace

StreamCopyEngine::StreamCopyEngine(DeviceAllocator* allocator, CudaCard* card,
                                   HazardTracker* tracker)
    : CopyEngine(allocator),
      card_(card),
      tracker_(tracker),
      host_memory_({[card](void* block, int64_t bytes) { return card->Pin(block, bytes).ok(); },
                    [card, tracker](void* block, int64_t bytes) {
                      // Only here the host waits: far memory goes back to the system.
                      while (!tracker->IsIdle(block, bytes) && card->status().ok()) {
                        std::this_thread::sleep_for(kNap);
                      }
                      card->Unpin(block);
                    },
                    kArenaBytes}) {}

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
  if (buffer->far_copy_.held()) {
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
  void* far_copy = host_memory_.Allocate(buffer->bytes);
  far_memory_full_.store(far_copy == nullptr);
  if (far_copy == nullptr) {
    ++stats_.copies_declined;
    return absl::OkStatus();
  }
  if (!tracker_->CopyOut(far_copy, buffer->tensor_.data(), buffer->bytes)) {
    host_memory_.Free(far_copy, buffer->bytes);
    return Failed("swapping out", *buffer, std::string(card_->status().message()));
  }
  if (verify_.load()) {
    card_->Finish(Queue::kOut);
    buffer->checksum_ = Checksum(far_copy, buffer->bytes);
  }
  ++stats_.copies_out;
  stats_.bytes_out += buffer->bytes;
  buffer->far_copy_.bytes = buffer->far_copy_.far_bytes = buffer->bytes;
  buffer->far_copy_.block = far_copy;
  buffer->state_ = FarBuffer::State::kFar;
  given_up->push_back(std::move(buffer->tensor_));
  buffer->tensor_ = Tensor();
  return absl::OkStatus();
}

absl::StatusOr<LinkTimes> StreamCopyEngine::MeasureLink(int64_t block_bytes, int copies) {
  struct Block {
    void* device;
    void* host;
  };
  std::vector<Block> blocks;
  absl::Status status;
  for (int i = 0; i < 2; ++i) {
    tensorflow::AllocationAttributes optional;
    optional.retry_on_failure = false;
    blocks.push_back({allocator_->AllocateRaw(tensorflow::Allocator::kAllocatorAlignment,
                                              static_cast<size_t>(block_bytes), optional),
                      host_memory_.Allocate(block_bytes)});
    if (blocks.back().device == nullptr || blocks.back().host == nullptr) {
      status = absl::ResourceExhaustedError("tfswap: no memory to measure the link with");
    }
  }
  // Whoever had the addresses before has ended.
  for (const Queue queue : {Queue::kCompute, Queue::kOut, Queue::kIn}) card_->Finish(queue);
  using Transfer = CudaCard::Transfer;
  const Transfer out{Queue::kOut, blocks[0].host, blocks[0].device};
  const Transfer in{Queue::kIn, blocks[1].device, blocks[1].host};
  std::vector<Transfer> first = {out}, second = {in}, both = {out, in};
  for (auto* transfers : {&first, &second, &both}) {
    for (const int count : {1, copies}) {  // the first one wakes the link up
      if (status.ok()) status = card_->Time(transfers, block_bytes, count);
    }
  }
  for (const Block& block : blocks) {
    if (block.device != nullptr) allocator_->DeallocateRaw(block.device);
    host_memory_.Free(block.host, block_bytes);
  }
  host_memory_.ResetPeak();  // it is to tell what was swapped
  if (!status.ok()) return status;
  return LinkTimes{block_bytes * copies, first[0].ns, second[0].ns, both[0].ns, both[1].ns};
}

absl::Status StreamCopyEngine::Fill(Tensor* output, const FarBufferPtr& buffer) {
  if (verify_.load() && Checksum(buffer->far_copy_.block, buffer->bytes) != buffer->checksum_) {
    return Changed(*buffer);
  }
  if (TakeFault("corrupt")) static_cast<char*>(buffer->far_copy_.block)[0] ^= 1;
  if (!tracker_->CopyIn(output->data(), buffer->far_copy_.block, buffer->bytes)) {
    return Failed("swapping in", *buffer, std::string(card_->status().message()));
  }
  if (verify_.load()) {
    card_->Finish(Queue::kIn);
    if (Checksum(buffer->far_copy_.block, buffer->bytes) != buffer->checksum_)
      return Changed(*buffer);
  }
  // At once, though it is still being read: whoever copies into it next waits on the card.
  Filled(buffer.get(), /*busy_ns=*/0);
  return absl::OkStatus();
}

void StreamCopyEngine::DropFarCopy(FarCopy* copy) {
  if (copy->held()) host_memory_.Free(copy->block, copy->bytes);
  *copy = FarCopy();
}

std::string StreamCopyEngine::Hindrance() const {
  if (!far_memory_full_.load()) return "";
  const HostPoolStats far = host_memory_.Stats();
  return "Far memory is full (" + ReadableBytes(far.bytes_in_use) + " of host_limit " +
         ReadableBytes(far.limit_bytes) + "), so nothing more could be moved: raise host_limit.";
}

}  // namespace tfswap
