#include "gpu/stream_codecs.h"

#include <cstring>
#include <iterator>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace tfswap {

namespace {

constexpr int64_t kFaultBytes = sizeof(uint64_t);

}  // namespace

std::string StreamCodecs::Problem() {
  const absl::StatusOr<CudaCodecs*> codecs = gpu_->Codecs();
  return codecs.ok() ? "" : std::string(codecs.status().message());
}

absl::Status StreamCodecs::SetLaunch(const std::string& codec, const CodecLaunch& launch) {
  const absl::StatusOr<GpuCodec> parsed = ParseGpuCodec(codec);
  if (!parsed.ok()) return parsed.status();
  const absl::Status status = CudaCodecs::CheckLaunch(launch);
  if (status.ok()) gpu_->SetLaunch(*parsed, launch);
  return status;
}

absl::Status StreamCodecs::Use(const std::string& codec, const std::string& path,
                               int64_t workspace_bytes) {
  const absl::StatusOr<GpuCodec> parsed = ParseGpuCodec(codec);
  if (!parsed.ok()) return parsed.status();
  if (!UsesNvcomp(*parsed) || gpu_->CanUse(*parsed)) return absl::OkStatus();
  const absl::StatusOr<CudaCodecs*> codecs = gpu_->Codecs();
  if (!codecs.ok()) return codecs.status();
  const absl::StatusOr<const Nvcomp*> library = Nvcomp::Open(path);
  if (!library.ok()) return library.status();
  tensorflow::AllocationAttributes optional;
  optional.retry_on_failure = false;
  void* workspace = allocator_->AllocateRaw(tensorflow::Allocator::kAllocatorAlignment,
                                            static_cast<size_t>(workspace_bytes), optional);
  void* fault = pool_->Allocate(kFaultBytes);
  absl::Status status;
  if (workspace == nullptr || fault == nullptr) {
    status = absl::ResourceExhaustedError(
        absl::StrCat("tfswap: not enough memory for the workspace of ", codec));
  } else {
    gpu_->FinishAll();  // earlier users of the addresses
    std::memset(fault, 0, kFaultBytes);
    absl::StatusOr<std::unique_ptr<NvcompCodec>> made =
        NvcompCodec::Make(*codecs, *library, *parsed, workspace, workspace_bytes,
                          static_cast<uint64_t*>(fault), gpu_->stream(Queue::kOut));
    status = made.status();
    if (made.ok()) {
      std::shared_ptr<NvcompCodec> own = *std::move(made);
      gpu_->SetNvcomp(*parsed, own);
      status = CheckBytes(codec);
      if (status.ok()) status = own->TakeFault();
      if (status.ok()) {
        std::lock_guard<std::mutex> lock(mu_);
        loaded_.push_back({*parsed, std::move(own), workspace, fault});
        return absl::OkStatus();
      }
      gpu_->SetNvcomp(*parsed, nullptr);
    }
    gpu_->FinishAll();
  }
  if (workspace != nullptr) allocator_->DeallocateRaw(workspace);
  pool_->Free(fault, kFaultBytes);
  return status;
}

absl::Status StreamCodecs::CheckBytes(const std::string& codec) {
  // Bit patterns that arithmetic would change (NaN payloads, -0.0, subnormals), some in runs, some
  // random: two sections and a rest.
  constexpr uint32_t kPatterns[] = {0, 0x7fc00001, 0xffa5a5a5, 0x80000000, 1, 0x80008001};
  std::vector<uint32_t> words(2 * gpu_codec::kBatchSectionBytes / sizeof(uint32_t) + 77);
  uint32_t dice = 1;
  for (size_t i = 0; i < words.size(); ++i) {
    dice = dice * 1664525 + 1013904223;
    words[i] = i % 64 < 16 ? dice : kPatterns[i / 64 % std::size(kPatterns)];
  }
  for (const int word_bytes : {4, 2}) {
    const absl::StatusOr<CodecTimes> times =
        Measure(codec, word_bytes, words.data(),
                static_cast<int64_t>(words.size() * sizeof(uint32_t)), {}, 1);
    if (!times.ok()) return times.status();
  }
  return absl::OkStatus();
}

void StreamCodecs::Release() {
  std::vector<LoadedCodec> released;
  {
    std::lock_guard<std::mutex> lock(mu_);
    released.swap(loaded_);
  }
  for (const LoadedCodec& each : released) gpu_->SetNvcomp(each.codec, nullptr);
  if (!released.empty()) gpu_->FinishAll();
  for (const LoadedCodec& each : released) {
    allocator_->DeallocateRaw(each.workspace);
    pool_->Free(each.fault, kFaultBytes);
  }
}

absl::Status StreamCodecs::TakeFault(bool wait) {
  std::lock_guard<std::mutex> lock(mu_);
  if (loaded_.empty()) return absl::OkStatus();
  if (wait) gpu_->Finish(Queue::kIn);
  for (const LoadedCodec& each : loaded_) {
    absl::Status status = each.own->TakeFault();
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::StatusOr<CodecTimes> StreamCodecs::Measure(const std::string& codec, int word_bytes,
                                                 const void* data, int64_t bytes,
                                                 const CodecLaunch& launch, int repeats) {
  const absl::StatusOr<GpuCodec> parsed = ParseGpuCodec(codec);
  if (!parsed.ok()) return parsed.status();
  const absl::StatusOr<CudaCodecs*> codecs = gpu_->Codecs();
  if (!codecs.ok()) return codecs.status();
  if (!gpu_->CanUse(*parsed)) {
    return absl::FailedPreconditionError(
        absl::StrCat("tfswap: codec '", codec, "' requires nvCOMP, which is not loaded"));
  }
  const absl::Status right_launch = CudaCodecs::CheckLaunch(launch);
  if (!right_launch.ok()) return right_launch;

  const int64_t max_bytes = CudaCodecs::MaxBytes(bytes);
  tensorflow::AllocationAttributes optional;
  optional.retry_on_failure = false;
  void* block = allocator_->AllocateRaw(tensorflow::Allocator::kAllocatorAlignment,
                                        static_cast<size_t>(bytes), optional);
  void* far_block = pool_->Allocate(max_bytes);
  void* host = pool_->Allocate(bytes);
  CodecTimes times;
  absl::Status status;
  if (block == nullptr || far_block == nullptr || host == nullptr) {
    status = absl::ResourceExhaustedError("tfswap: no memory to measure the codecs in");
  } else {
    // Earlier users of the addresses have to end.
    gpu_->FinishAll();
    std::memcpy(host, data, static_cast<size_t>(bytes));
    const Transfer plain{block, bytes, host, bytes};
    Transfer encoded{block, bytes, far_block, max_bytes};
    encoded.form.kind = Form::Kind::kEncoded;
    encoded.form.codec = static_cast<int>(*parsed);
    encoded.form.word_bytes = word_bytes;
    const CodecLaunch before = gpu_->LaunchOf(*parsed);
    gpu_->SetLaunch(*parsed, launch);
    // The first run loads the kernels.
    std::vector<CudaGpu::Timed> load = {{Queue::kIn, plain}}, out = {{Queue::kOut, encoded}},
                                in = {{Queue::kIn, encoded}}, back = {{Queue::kOut, plain}};
    status = gpu_->Time(&load, 1);
    for (const int count : {1, repeats}) {
      if (status.ok()) status = gpu_->Time(&out, count);
      if (status.ok()) status = gpu_->Time(&in, count);
    }
    std::memset(host, 0, static_cast<size_t>(bytes));
    if (status.ok()) status = gpu_->Time(&back, 1);
    gpu_->SetLaunch(*parsed, before);
    if (status.ok() && std::memcmp(host, data, static_cast<size_t>(bytes)) != 0) {
      status = absl::DataLossError(absl::StrCat(
          "tfswap: codec '", codec, "' does not restore the original bytes on this GPU"));
    }
    if (status.ok()) {
      times = {CudaCodecs::EncodedBytes(far_block), out[0].ns / repeats, in[0].ns / repeats};
    }
  }
  if (block != nullptr) allocator_->DeallocateRaw(block);
  pool_->Free(far_block, max_bytes);
  pool_->Free(host, bytes);
  pool_->ResetPeak();  // the peak counts swaps only
  if (!status.ok()) return status;
  return times;
}

}  // namespace tfswap
