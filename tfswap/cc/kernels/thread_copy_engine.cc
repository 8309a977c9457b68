#include "kernels/thread_copy_engine.h"

#include <chrono>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "core/copy.h"
#include "core/now.h"

namespace tfswap {

using ::tensorflow::Tensor;

namespace {

// Of what must come back unchanged: of a lossy copy, that is what is kept.
uint64_t KeptChecksum(const FarCopy& copy, const void* data) {
  return copy.lossy ? ChecksumOf(copy.encoded) : Checksum(data, copy.bytes);
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
  sampler()->Sample(buffer.label, data, buffer.bytes, buffer.wish.codec.element_bytes);
}

void ThreadCopyEngine::Leave(const FarBufferPtr& buffer, Done done) {
  std::lock_guard<std::mutex> lock(mu_);
  StartLeaving(buffer, std::move(done));
}

void ThreadCopyEngine::StartLeaving(const FarBufferPtr& buffer, Done done) {
  StartLeavingLocked(buffer.get(), buffer->wish.tier == FarTier::kFile ? &file_out_ : &out_,
                     [this, buffer, done = std::move(done)] { CopyOut(buffer, done); });
}

void ThreadCopyEngine::CopyOut(const FarBufferPtr& buffer, const Done& done) {
  const int64_t start_ns = NowNs();
  absl::Status status;
  FarCopy far_copy;
  if (TakeFault("out")) {
    status = Failed("swapping out", *buffer, "injected fault");
  } else {
    const void* data = buffer->tensor_.data();
    if (far()->Put(data, buffer->bytes, buffer->wish, &far_copy)) {
      if (verify_.load()) buffer->checksum_ = KeptChecksum(far_copy, data);
      if (far_copy.lossy) loss_meter()->Compare(buffer->label, data, far_copy.encoded);
      HoldForLink(start_ns, far_copy);
    }
  }
  EndLeaving(buffer.get(), std::move(far_copy), status, NowNs() - start_ns);
  if (done) done(status);
}

void ThreadCopyEngine::HaveVariableLeave(int64_t bytes, FarTier tier, std::function<void()> move) {
  LeavesLater(tier == FarTier::kFile ? &file_out_ : &out_, bytes, std::move(move));
}

bool ThreadCopyEngine::CopyVariableOut(const void* data, int64_t bytes, const FarWish& wish,
                                       FarCopy* copy, uint64_t* checksum) {
  const int64_t start_ns = NowNs();
  if (!far()->Put(data, bytes, wish, copy)) return false;
  if (verify_.load()) *checksum = Checksum(data, bytes);
  HoldForLink(start_ns, *copy);
  CountCopy(/*out=*/true, bytes, NowNs() - start_ns);
  return true;
}

absl::Status ThreadCopyEngine::CopyVariableIn(const FarCopy& copy, uint64_t checksum, void* data) {
  const int64_t start_ns = NowNs();
  const CopyingIn copying(this);
  const std::string problem = far()->Get(copy, data);
  if (!problem.empty()) {
    return absl::InternalError("tfswap: fetching a variable failed: " + problem);
  }
  if (checksum != 0 && verify_.load() && Checksum(data, copy.bytes) != checksum) {
    return absl::DataLossError(
        "tfswap: a variable came back from far memory changed. Suspect the host's memory.");
  }
  HoldForLink(start_ns, copy);
  CountCopy(/*out=*/false, copy.bytes, NowNs() - start_ns);
  return absl::OkStatus();
}

void ThreadCopyEngine::EvictLocked(const FarBufferPtr& buffer, std::vector<Tensor>*) {
  StartLeaving(buffer, nullptr);
}

absl::Status ThreadCopyEngine::Fill(Tensor* output, const FarBufferPtr& buffer) {
  const int64_t start_ns = NowNs();
  const FarCopy& copy = buffer->far_copy_;
  const std::string problem = far()->Get(copy, output->data());
  if (!problem.empty()) return Failed("swapping in", *buffer, problem);
  if (TakeFault("corrupt")) {
    (copy.lossy ? copy.encoded.chunks[0] : static_cast<char*>(output->data()))[0] ^= 1;
  }
  if (verify_.load() && KeptChecksum(copy, output->data()) != buffer->checksum_) {
    return Changed(*buffer);
  }
  HoldForLink(start_ns, copy);
  Filled(buffer.get(), NowNs() - start_ns);
  return absl::OkStatus();
}

void ThreadCopyEngine::EmulateLink(double bytes_per_s, int64_t latency_ns) {
  link_ns_per_byte_.store(bytes_per_s > 0 ? 1e9 / bytes_per_s : 0);
  link_latency_ns_.store(bytes_per_s > 0 ? latency_ns : 0);
}

void ThreadCopyEngine::HoldForLink(int64_t start_ns, const FarCopy& copy) const {
  const double ns_per_byte = link_ns_per_byte_.load();
  if (ns_per_byte <= 0 || copy.tier == FarTier::kFile) return;
  const int64_t due_ns = start_ns + link_latency_ns_.load() +
                         static_cast<int64_t>(ns_per_byte * static_cast<double>(copy.far_bytes));
  const int64_t left_ns = due_ns - NowNs();
  if (left_ns > 0) std::this_thread::sleep_for(std::chrono::nanoseconds(left_ns));
}

}  // namespace tfswap
