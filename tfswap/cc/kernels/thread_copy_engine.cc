#include "kernels/thread_copy_engine.h"

#include <algorithm>
#include <chrono>
#include <new>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "allocator/kernel_scope.h"
#include "core/memory/copy.h"
#include "core/util/faults.h"
#include "core/util/now.h"

namespace tfswap {

using ::tensorflow::Tensor;

namespace {

constexpr char kInjected[] = "injected fault";

// What is smaller is copied by the thread that needs it: to wake another one takes as long.
constexpr int64_t kSmallBytes = 64 << 10;
constexpr char kNoHostMemory[] = "the host has no memory for it";

// Return the checksum of the data that must be restored exactly: the encoded data of a lossy copy.
uint64_t KeptChecksum(const FarCopy& copy, const void* data) {
  return copy.lossy ? ChecksumOf(copy.encoded) : Checksum(data, copy.bytes);
}

void InjectFault() {
  Faults::Delay(Fault::kSlowCopy);
  if (Faults::Strikes(Fault::kCopyThrows)) throw std::bad_alloc();
}

// Return whether there was far memory for the copy and its bookkeeping.
bool PutIn(FarMemory* far, const void* data, int64_t bytes, const PlacementRequest& request,
           FarCopy* copy) {
  try {
    InjectFault();
    return far->Put(data, bytes, request, copy);
  } catch (const std::bad_alloc&) {
    *copy = FarCopy();
    return false;
  }
}

FarProblem GetFrom(FarMemory* far, const FarCopy& copy, void* data) {
  try {
    InjectFault();
    return far->Get(copy, data);
  } catch (const std::bad_alloc&) {
    return {kNoHostMemory};
  }
}

}  // namespace

FarMemory* ThreadCopyEngine::far() {
  static auto* memory = new FarMemory(FarFile::Get());
  return memory;
}

RatioSampler* ThreadCopyEngine::sampler() {
  static auto* sampler = new RatioSampler();
  return sampler;
}

LossMeter* ThreadCopyEngine::loss_meter() {
  static auto* meter = new LossMeter();
  return meter;
}

void ThreadCopyEngine::Sample(const FarBuffer& buffer, const void* data) {
  if (!sampler()->on()) return;
  sampler()->Sample(buffer.label, data, buffer.bytes, buffer.request.codec.element_bytes);
}

void ThreadCopyEngine::SwapOut(const FarBufferPtr& buffer, Done done) {
  std::lock_guard<std::mutex> lock(mu_);
  StartSwapOut(buffer, std::move(done));
}

void ThreadCopyEngine::StartSwapOut(const FarBufferPtr& buffer, Done done) {
  StartSwapOutLocked(buffer.get(), buffer->request.tier == FarTier::kFile ? &file_out_ : &out_,
                     [this, buffer, done = std::move(done)] { CopyOut(buffer, done); });
}

void ThreadCopyEngine::CopyOut(const FarBufferPtr& buffer, const Done& done) {
  const int64_t start_ns = NowNs();
  absl::Status status;
  FarCopy far_copy;
  if (Faults::Strikes(Fault::kCopyOutFails)) {
    status = Failed("swapping out", *buffer, kInjected);
  } else if (BufferChunks(buffer->bytes).count() == 1) {
    PutPiece(*buffer, buffer->tensor_.data(), buffer->bytes, &far_copy);
  } else {
    // The op that waits for `done` has a reference as well.
    PutChunks(buffer.get(), done ? 2 : 1, &far_copy);
  }
  EndSwapOut(buffer.get(), std::move(far_copy), status, NowNs() - start_ns);
  if (done) done(status);
}

bool ThreadCopyEngine::PutPiece(const FarBuffer& buffer, const void* data, int64_t bytes,
                                FarCopy* copy) {
  const int64_t start_ns = NowNs();
  if (!PutIn(far(), data, bytes, buffer.request, copy)) return false;
  if (verify_.load()) copy->checksum = KeptChecksum(*copy, data);
  if (copy->lossy) loss_meter()->Compare(buffer.label, data, copy->encoded);
  EmulateLinkDelay(start_ns, *copy, kOut);
  return true;
}

void ThreadCopyEngine::PutChunks(FarBuffer* buffer, int references, FarCopy* copy) {
  const BufferChunks chunks(buffer->bytes);
  const char* data = static_cast<const char*>(buffer->tensor_.data());
  copy->chunks.resize(chunks.count());
  // From the end, so that the remaining block keeps its start.
  for (int i = chunks.count() - 1; i >= 0; --i) {
    const int64_t begin = chunks.begin(i);
    if (!PutPiece(*buffer, data + begin, chunks.bytes(i), &copy->chunks[i])) {
      copy->kept_bytes = begin + chunks.bytes(i);
      break;
    }
    copy->bytes = buffer->bytes;
    copy->tier = copy->chunks[i].tier;
    if (begin > 0) ReleaseEnd(buffer, begin, references);
  }
  if (copy->kept_bytes > 0 && buffer->released_bytes_ == 0) {
    // No device memory was released: keep the whole buffer.
    far()->Drop(copy);
    *copy = FarCopy();
  }
}

absl::StatusOr<bool> ThreadCopyEngine::CopyVariableOut(const void* data, int64_t bytes,
                                                       const PlacementRequest& request,
                                                       FarCopy* copy) {
  const int64_t start_ns = NowNs();
  if (Faults::Strikes(Fault::kCopyOutFails)) return VariableFailed("swapping out", kInjected);
  if (!PutIn(far(), data, bytes, request, copy)) return false;
  if (verify_.load()) copy->checksum = Checksum(data, bytes);
  if (copy->extent.checkpoint != nullptr) return true;  // nothing was copied
  EmulateLinkDelay(start_ns, *copy, kOut);
  CountCopy(/*out=*/true, bytes, NowNs() - start_ns);
  return true;
}

absl::Status ThreadCopyEngine::CopyVariableIn(const FarCopy& copy, const PlacementRequest&,
                                              void* data) {
  const int64_t start_ns = NowNs();
  const CopyingIn copying(this);
  if (Faults::Strikes(Fault::kCopyInFails)) return VariableFailed("swapping in", kInjected);
  const FarProblem problem = GetFrom(far(), copy, data);
  if (problem.changed) return VariableChanged(copy.bytes, problem.why);
  if (!problem.why.empty()) return VariableFailed("swapping in", problem.why);
  if (copy.checksum != 0 && verify_.load() && Checksum(data, copy.bytes) != copy.checksum) {
    return VariableChanged(copy.bytes, kChecksumDiffers);
  }
  EmulateLinkDelay(start_ns, copy, kIn);
  CountCopy(/*out=*/false, copy.bytes, NowNs() - start_ns);
  return absl::OkStatus();
}

absl::Status ThreadCopyEngine::CopyVariableRowsIn(const FarCopy& copy, int64_t row_bytes,
                                                  const std::vector<int64_t>& rows, char* output) {
  const int64_t start_ns = NowNs();
  const CopyingIn copying(this);
  if (Faults::Strikes(Fault::kCopyInFails)) return VariableFailed("swapping in", kInjected);
  const std::string problem = far()->GetRows(copy, row_bytes, rows, output);
  if (!problem.empty()) return VariableFailed("swapping in", problem);
  const auto bytes = static_cast<int64_t>(rows.size()) * row_bytes;
  FarCopy part;
  part.tier = copy.tier;
  part.far_bytes = bytes;
  EmulateLinkDelay(start_ns, part, kIn);
  CountCopy(/*out=*/false, bytes, NowNs() - start_ns);
  return absl::OkStatus();
}

void ThreadCopyEngine::EvictLocked(const FarBufferPtr& buffer, Evicted* evicted) {
  if (buffer->bytes > kSmallBytes) return StartSwapOut(buffer, nullptr);
  SetLeavingLocked(buffer.get());
  evicted->to_copy.push_back(buffer);
}

bool ThreadCopyEngine::FillsAtOnce(const FarBuffer& buffer) const {
  return buffer.bytes <= kSmallBytes && buffer.far_copy_.tier == FarTier::kHost;
}

int64_t ThreadCopyEngine::FirstChunk(const FarBuffer& buffer) const {
  const BufferChunks chunks(buffer.bytes);
  return chunks.count() > 1 && allocator_->OnHost() ? BytesToCommit(chunks, 0) : 0;
}

int64_t ThreadCopyEngine::BytesToCommit(const BufferChunks& chunks, int number) {
  // Its last page may be a huge page.
  return chunks.begin(number + 1) + BufferChunks::kUnitBytes;
}

bool ThreadCopyEngine::Fill(Tensor* output, const FarBufferPtr& buffer, absl::Status* status) {
  const int64_t start_ns = NowNs();
  char* data = static_cast<char*>(output->data());
  const FarCopy& copy = buffer->far_copy_;
  if (copy.chunks.empty()) {
    *status = GetPiece(*buffer, copy, data);
  } else {
    const BufferChunks chunks(buffer->bytes);
    const bool in_part = KernelScope::current != nullptr && KernelScope::current->pays > 0;
    for (int i = 0; status->ok() && i < chunks.count(); ++i) {
      if (in_part && !allocator_->Pay(data, BytesToCommit(chunks, i))) return false;
      const FarCopy& piece = copy.chunks[i];
      const int64_t begin = chunks.begin(i);
      if (piece.held()) {
        *status = GetPiece(*buffer, piece, data + begin);
      } else {
        CopyPastCache(data + begin, static_cast<const char*>(buffer->tensor_.data()) + begin,
                      chunks.bytes(i));
      }
    }
  }
  if (status->ok()) Filled(buffer.get(), NowNs() - start_ns);
  return true;
}

absl::Status ThreadCopyEngine::GetPiece(const FarBuffer& buffer, const FarCopy& copy, char* data) {
  const int64_t start_ns = NowNs();
  const FarProblem problem = GetFrom(far(), copy, data);
  if (problem.changed) return Changed(buffer, problem.why);
  if (!problem.why.empty()) return Failed("swapping in", buffer, problem.why);
  if (verify_.load() && KeptChecksum(copy, data) != copy.checksum)
    return Changed(buffer, kChecksumDiffers);
  EmulateLinkDelay(start_ns, copy, kIn);
  return absl::OkStatus();
}

void ThreadCopyEngine::EmulateLink(double bytes_per_s, int64_t latency_ns) {
  link_ns_per_byte_.store(bytes_per_s > 0 ? 1e9 / bytes_per_s : 0);
  link_latency_ns_.store(bytes_per_s > 0 ? latency_ns : 0);
  for (std::atomic<int64_t>& each : link_free_ns_) each.store(0);
}

void ThreadCopyEngine::EmulateLinkDelay(int64_t start_ns, const FarCopy& copy,
                                        Direction direction) {
  const double ns_per_byte = link_ns_per_byte_.load();
  if (ns_per_byte <= 0 || copy.tier == FarTier::kFile) return;
  const int64_t takes_ns = link_latency_ns_.load() +
                           static_cast<int64_t>(ns_per_byte * static_cast<double>(copy.far_bytes));
  std::atomic<int64_t>& free_ns = link_free_ns_[direction];
  int64_t before_ns = free_ns.load(), due_ns;
  do {
    due_ns = std::max(start_ns, before_ns) + takes_ns;
  } while (!free_ns.compare_exchange_weak(before_ns, due_ns));
  const int64_t left_ns = due_ns - NowNs();
  if (left_ns > 0) std::this_thread::sleep_for(std::chrono::nanoseconds(left_ns));
}

}  // namespace tfswap
