#include "gpu/stream_copy_engine.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <iterator>
#include <memory>
#include <optional>
#include <thread>
#include <utility>

#include "core/memory/copy.h"
#include "core/util/faults.h"
#include "tensorflow/core/common_runtime/dma_helper.h"

namespace tfswap {

using ::tensorflow::Tensor;

namespace {

constexpr auto kPollInterval = std::chrono::milliseconds(1);
// Pinning takes the driver's locks, whatever the size of the block.
constexpr int64_t kArenaBytes = int64_t{64} << 20;

// Return the word size for the GPU codecs; 0 if they do not support the element size.
int WordBytesOf(const CodecSpec& spec) {
  if (spec.element_bytes == 2) return 2;
  return spec.element_bytes % 4 == 0 ? 4 : 0;
}

}  // namespace

StreamCopyEngine::StreamCopyEngine(DeviceAllocator* allocator, CudaGpu* gpu, HazardTracker* tracker)
    : CopyEngine(allocator),
      gpu_(gpu),
      tracker_(tracker),
      host_memory_({[gpu](int64_t bytes) { return gpu->TakePinned(bytes); },
                    [gpu, tracker](void* block, int64_t bytes) {
                      // The only place where the host blocks: far memory is released to the system.
                      while (!tracker->IsIdle(block, bytes) && gpu->status().ok()) {
                        std::this_thread::sleep_for(kPollInterval);
                      }
                      gpu->GivePinnedBack(block, bytes);
                    },
                    kArenaBytes}),
      file_(gpu, tracker, &host_memory_),
      codecs_(allocator, gpu, &host_memory_),
      sampler_(gpu, tracker, &host_memory_),
      numbers_(&host_memory_) {}

void StreamCopyEngine::SwapOut(const FarBufferPtr& buffer, Done done) {
  std::vector<Tensor> given_up;
  absl::Status status = codecs_.TakeFault(/*wait=*/false);
  if (status.ok()) {
    std::lock_guard<std::mutex> lock(mu_);
    status = SwapOutLocked(buffer, &done, &given_up);
  }
  if (!given_up.empty()) {
    std::lock_guard<std::mutex> lock(unread_mu_);
    std::move(given_up.begin(), given_up.end(), std::back_inserter(unread_));
    has_unread_.store(true, std::memory_order_release);
  }
  if (done) done(status);
}

void StreamCopyEngine::ReleaseUnread() {
  if (!has_unread_.load(std::memory_order_acquire)) return;
  std::vector<Tensor> released;
  std::lock_guard<std::mutex> lock(unread_mu_);
  const auto first = std::partition(unread_.begin(), unread_.end(), [](const Tensor& each) {
    auto* memory = const_cast<tensorflow::TensorBuffer*>(tensorflow::DMAHelper::buffer(&each));
    return !memory->RefCountIsOne() || !memory->root_buffer()->RefCountIsOne();
  });
  std::move(first, unread_.end(), std::back_inserter(released));
  unread_.erase(first, unread_.end());
  has_unread_.store(!unread_.empty(), std::memory_order_release);
}

void StreamCopyEngine::EvictLocked(const FarBufferPtr& buffer, Evicted* evicted) {
  Done no_callback;
  // Errors are reported by the GPU's status at the next swap.
  (void)SwapOutLocked(buffer, &no_callback, &evicted->given_up);
}

absl::Status StreamCopyEngine::SwapOutLocked(const FarBufferPtr& buffer, Done* done,
                                             std::vector<Tensor>* given_up) {
  if (Faults::Strikes(Fault::kCopyOutFails))
    return Failed("swapping out", *buffer, "injected fault");
  const bool requests_file = buffer->request.tier == FarTier::kFile;
  const bool has_file = file_.IsReady();
  FarCopy far_copy;
  if (!(requests_file && has_file)) {
    const std::string problem =
        CopyToMemoryLocked(buffer->tensor_.data(), buffer->bytes, buffer->request, &far_copy);
    if (!problem.empty()) return Failed("swapping out", *buffer, problem);
  }
  if (far_copy.held()) {
    far_memory_full_.store(false);
    ++stats_.copies_out;
    stats_.bytes_out += buffer->bytes;
    buffer->far_copy_ = std::move(far_copy);
    SetFarLocked(buffer.get(), given_up);
  } else if (has_file) {
    // Commands given to compute from now on need not end before the copy.
    const HazardTracker::PiecewiseMove whole = tracker_->BeginOut(buffer->tensor_.data());
    Done at_end = requests_file ? std::exchange(*done, nullptr) : nullptr;
    StartSwapOutLocked(buffer.get(), &file_out_, [this, buffer, whole, at_end = std::move(at_end)] {
      SendToFile(buffer, whole, at_end);
    });
  } else {
    far_memory_full_.store(true);
    ++stats_.copies_declined;
  }
  return absl::OkStatus();
}

std::string StreamCopyEngine::CopyToMemoryLocked(const void* block, int64_t bytes,
                                                 const PlacementRequest& request, FarCopy* copy) {
  UpdateFarBytesLocked();
  FarCopy far_copy;
  if (!TakeFarMemory(block, bytes, request, &far_copy)) return "";
  if (verify_.load()) far_copy.checksum = ChecksumOf(block, bytes);
  Transfer transfer = TransferOf(block, request.codec, far_copy);
  if (far_copy.tier == FarTier::kCompressed) transfer.form.far_bytes = numbers_.Take();
  if (!tracker_->MoveOut(transfer)) {
    if (transfer.form.far_bytes != nullptr) numbers_.Give(transfer.form.far_bytes);
    host_memory_.Free(far_copy.block, far_copy.far_bytes);
    return GpuFailed();
  }
  counts_.AddOut(far_copy.tier, bytes, far_copy.far_bytes, /*busy_ns=*/0);
  if (transfer.form.far_bytes != nullptr) {
    pending_sizes_.push_back({transfer.form.far_bytes, /*counts=*/true});
  } else {
    counts_.AddFarBytes(far_copy.tier, far_copy.far_bytes);
  }
  if (far_copy.tier != request.tier) counts_.AddFallback();
  *copy = std::move(far_copy);
  return "";
}

bool StreamCopyEngine::CopyToFile(const HazardTracker::PiecewiseMove& whole, int64_t bytes,
                                  const PlacementRequest& request, FarCopy* copy,
                                  int64_t* disk_ns) {
  if (request.checkpoint != nullptr) {
    *copy = InCheckpoint(request.checkpoint);
    return true;
  }
  const uint64_t checksum = verify_.load() ? ChecksumOf(whole.block, bytes) : 0;
  const auto write = [&](SpillFile* file, int64_t offset) {
    return file_.CopyOut(whole, bytes, file, offset, disk_ns);
  };
  if (!FarFile::Get()->Put(bytes, write, &counts_, &copy->extent)) return false;
  copy->tier = FarTier::kFile;
  copy->bytes = copy->far_bytes = bytes;
  copy->checksum = checksum;
  counts_.AddOut(copy->tier, bytes, bytes, *disk_ns);
  counts_.AddFarBytes(copy->tier, bytes);
  if (copy->tier != request.tier) counts_.AddFallback();
  return true;
}

void StreamCopyEngine::SendToFile(const FarBufferPtr& buffer,
                                  const HazardTracker::PiecewiseMove& whole, const Done& done) {
  int64_t disk_ns = 0;
  absl::Status status;
  FarCopy far_copy;
  if (!CopyToFile(whole, buffer->bytes, buffer->request, &far_copy, &disk_ns) &&
      buffer->request.tier == FarTier::kFile) {
    // The requested tier failed: try host memory.
    std::lock_guard<std::mutex> lock(mu_);
    const std::string problem =
        CopyToMemoryLocked(whole.block, buffer->bytes, buffer->request, &far_copy);
    if (!problem.empty()) status = Failed("swapping out", *buffer, problem);
  }
  far_memory_full_.store(!far_copy.held());
  EndSwapOut(buffer.get(), std::move(far_copy), status, disk_ns);
  if (done) done(status);
}

absl::StatusOr<bool> StreamCopyEngine::CopyVariableOut(const void* data, int64_t bytes,
                                                       const PlacementRequest& request,
                                                       FarCopy* copy) {
  const absl::Status codec = codecs_.TakeFault(/*wait=*/false);
  if (!codec.ok()) return codec;
  if (Faults::Strikes(Fault::kCopyOutFails)) {
    return VariableFailed("swapping out", "injected fault");
  }
  const bool has_file = request.checkpoint != nullptr || file_.IsReady();
  int64_t disk_ns = 0;
  const auto to_memory = [&] {
    std::lock_guard<std::mutex> lock(mu_);
    return CopyToMemoryLocked(data, bytes, request, copy);
  };
  const auto to_file = [&] {
    if (has_file) CopyToFile(tracker_->BeginOut(data), bytes, request, copy, &disk_ns);
  };
  const bool file_first = request.tier == FarTier::kFile;
  if (file_first) to_file();
  const std::string problem = copy->held() ? "" : to_memory();
  if (!problem.empty()) return VariableFailed("swapping out", problem);
  if (!file_first && !copy->held()) to_file();
  far_memory_full_.store(!copy->held());
  const bool is_copied = copy->held() && copy->extent.checkpoint == nullptr;
  if (is_copied) CountCopy(/*out=*/true, bytes, disk_ns);
  return copy->held();
}

absl::Status StreamCopyEngine::CopyVariableIn(const FarCopy& copy, const PlacementRequest& request,
                                              void* data) {
  const CopyingIn copying(this);
  const absl::Status codec = codecs_.TakeFault(/*wait=*/false);
  if (!codec.ok()) return codec;
  if (Faults::Strikes(Fault::kCopyInFails)) {
    return VariableFailed("swapping in", "injected fault");
  }
  int64_t disk_ns = 0;
  const std::string problem = FillBlock(data, copy, request, &disk_ns);
  if (!problem.empty()) return VariableFailed("swapping in", problem);
  if (copy.checksum != 0 && verify_.load() && ChecksumOf(data, copy.bytes) != copy.checksum) {
    return VariableChanged(copy.bytes, kChecksumDiffers);
  }
  counts_.AddIn(copy.tier, copy.bytes, disk_ns);
  CountCopy(/*out=*/false, copy.bytes, disk_ns);
  return absl::OkStatus();
}

bool StreamCopyEngine::TakeFarMemory(const void* block, int64_t bytes,
                                     const PlacementRequest& request, FarCopy* copy) {
  copy->bytes = bytes;
  if (request.tier == FarTier::kCompressed && CanEncode(block, request.codec)) {
    copy->tier = FarTier::kCompressed;
    copy->far_bytes = CudaCodecs::MaxBytes(bytes);
    copy->block = host_memory_.Allocate(copy->far_bytes);
    if (copy->block != nullptr) return true;
  }
  copy->tier = FarTier::kHost;
  copy->far_bytes = bytes;
  copy->block = host_memory_.Allocate(copy->far_bytes);
  if (copy->block == nullptr) *copy = FarCopy();
  return copy->held();
}

bool StreamCopyEngine::CanEncode(const void* block, const CodecSpec& spec) {
  const std::optional<GpuCodec> codec = GpuCodecOf(spec.codec);
  return codec.has_value() && WordBytesOf(spec) != 0 && CudaCodecs::IsAligned(block, nullptr) &&
         gpu_->CanUse(*codec);
}

Transfer StreamCopyEngine::TransferOf(const void* block, const CodecSpec& spec,
                                      const FarCopy& copy) const {
  Transfer transfer{const_cast<void*>(block), copy.bytes, copy.block, copy.far_bytes};
  if (copy.tier != FarTier::kCompressed) return transfer;
  transfer.form.kind = Form::Kind::kEncoded;
  transfer.form.codec = static_cast<int>(*GpuCodecOf(spec.codec));
  transfer.form.word_bytes = WordBytesOf(spec);
  return transfer;
}

void StreamCopyEngine::UpdateFarBytesLocked() {
  while (!pending_sizes_.empty()) {
    const PendingSize& oldest = pending_sizes_.front();
    const uint64_t far_bytes = __atomic_load_n(oldest.far_bytes, __ATOMIC_ACQUIRE);
    if (far_bytes == 0) return;
    if (oldest.counts) counts_.AddFarBytes(FarTier::kCompressed, static_cast<int64_t>(far_bytes));
    numbers_.Give(oldest.far_bytes);
    pending_sizes_.pop_front();
  }
}

FarStats StreamCopyEngine::FarUse() {
  std::lock_guard<std::mutex> lock(mu_);
  UpdateFarBytesLocked();
  return counts_.Stats();
}

void StreamCopyEngine::ResetFarUse() {
  std::lock_guard<std::mutex> lock(mu_);
  UpdateFarBytesLocked();
  for (PendingSize& each : pending_sizes_) each.counts = false;
  counts_.Reset();
  host_memory_.ResetPeak();
}

uint64_t StreamCopyEngine::ChecksumOf(const void* block, int64_t bytes) {
  const std::unique_ptr<char[]> copy(new char[bytes]);
  if (!tracker_->CopyOut(copy.get(), block, bytes)) return 0;
  gpu_->Finish(Queue::kOut);
  return Checksum(copy.get(), bytes);
}

void StreamCopyEngine::Sample(const FarBuffer& buffer, const void* data) {
  const int word_bytes = WordBytesOf(buffer.request.codec);
  if (word_bytes != 0) sampler_.Sample(buffer.label, data, buffer.bytes, word_bytes);
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
  // Earlier users of the addresses have to end.
  gpu_->FinishAll();
  using Timed = CudaGpu::Timed;
  const auto plain = [&](const Block& block) {
    return Transfer{block.device, block_bytes, block.host, block_bytes};
  };
  const Timed out{Queue::kOut, plain(blocks[0])}, in{Queue::kIn, plain(blocks[1])};
  std::vector<Timed> first = {out}, second = {in}, both = {out, in};
  for (auto* timed : {&first, &second, &both}) {
    for (const int count : {1, copies}) {  // the first one wakes up the link
      if (status.ok()) status = gpu_->Time(timed, count);
    }
  }
  for (const Block& block : blocks) {
    if (block.device != nullptr) allocator_->DeallocateRaw(block.device);
    host_memory_.Free(block.host, block_bytes);
  }
  host_memory_.ResetPeak();  // the peak counts swaps only
  if (!status.ok()) return status;
  return LinkTimes{block_bytes * copies, first[0].ns, second[0].ns, both[0].ns, both[1].ns};
}

bool StreamCopyEngine::Fill(Tensor* output, const FarBufferPtr& buffer, absl::Status* status) {
  *status = FillOutput(output, buffer);
  return true;
}

absl::Status StreamCopyEngine::FillOutput(Tensor* output, const FarBufferPtr& buffer) {
  absl::Status status = codecs_.TakeFault(/*wait=*/false);
  if (!status.ok()) return status;
  const FarCopy& copy = buffer->far_copy_;
  int64_t disk_ns = 0;
  const std::string problem = FillBlock(output->data(), copy, buffer->request, &disk_ns);
  if (!problem.empty()) return Failed("swapping in", *buffer, problem);
  if (verify_.load() && ChecksumOf(output->data(), buffer->bytes) != copy.checksum) {
    return Changed(*buffer, kChecksumDiffers);
  }
  counts_.AddIn(copy.tier, copy.bytes, disk_ns);
  // Release the far copy although it is still being read: the next copy into it waits on the GPU.
  Filled(buffer.get(), disk_ns);
  return absl::OkStatus();
}

std::string StreamCopyEngine::FillBlock(void* block, const FarCopy& copy,
                                        const PlacementRequest& request, int64_t* disk_ns) {
  if (copy.tier == FarTier::kFile) return file_.CopyIn(copy.extent, block, copy.bytes, disk_ns);
  return FillFromMemory(block, copy, request) ? "" : GpuFailed();
}

bool StreamCopyEngine::FillFromMemory(void* block, const FarCopy& copy,
                                      const PlacementRequest& request) {
  if (Faults::Strikes(Fault::kBitFlip)) {
    gpu_->Finish(Queue::kOut);
    // In an encoded copy, corrupt the size of the first section.
    const size_t at = copy.tier == FarTier::kCompressed
                          ? sizeof(gpu_codec::FarHeader) + offsetof(gpu_codec::FarSection, bytes)
                          : 0;
    static_cast<char*>(copy.block)[at] ^= 1;
  }
  return tracker_->MoveIn(TransferOf(block, request.codec, copy));
}

void StreamCopyEngine::DropFarCopy(FarCopy* copy) {
  if (!copy->held()) return;
  counts_.AddDrop(copy->tier, copy->far_bytes);
  if (copy->tier == FarTier::kFile) {
    FarFile::Get()->Drop(&copy->extent, copy->bytes);
  } else {
    host_memory_.Free(copy->block, copy->far_bytes);
  }
  *copy = FarCopy();
}

std::string StreamCopyEngine::WhyBlocked(int64_t missing_bytes) const {
  if (!far_memory_full_.load()) return "";
  return FarFile::Get()->WhyFull(host_memory_.Stats(), missing_bytes);
}

}  // namespace tfswap
