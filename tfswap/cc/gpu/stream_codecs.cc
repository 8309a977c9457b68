#include "gpu/stream_codecs.h"

#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"

namespace tfswap {

std::string StreamCodecs::Problem() {
  const absl::StatusOr<CudaCodecs*> codecs = card_->Codecs();
  return codecs.ok() ? "" : std::string(codecs.status().message());
}

absl::Status StreamCodecs::SetLaunch(const std::string& codec, const CodecLaunch& launch) {
  const absl::StatusOr<CardCodec> parsed = ParseCardCodec(codec);
  if (!parsed.ok()) return parsed.status();
  const absl::Status status = CudaCodecs::CheckLaunch(launch);
  if (status.ok()) card_->SetLaunch(*parsed, launch);
  return status;
}

absl::StatusOr<CodecTimes> StreamCodecs::Measure(const std::string& codec, int word_bytes,
                                                 const void* data, int64_t bytes,
                                                 const CodecLaunch& launch, int repeats) {
  const absl::StatusOr<CardCodec> parsed = ParseCardCodec(codec);
  if (!parsed.ok()) return parsed.status();
  const absl::StatusOr<CudaCodecs*> codecs = card_->Codecs();
  if (!codecs.ok()) return codecs.status();
  const absl::Status right_launch = CudaCodecs::CheckLaunch(launch);
  if (!right_launch.ok()) return right_launch;

  const int64_t most_bytes = CudaCodecs::MostBytes(bytes);
  tensorflow::AllocationAttributes optional;
  optional.retry_on_failure = false;
  void* block = allocator_->AllocateRaw(tensorflow::Allocator::kAllocatorAlignment,
                                        static_cast<size_t>(bytes), optional);
  void* far_block = pool_->Allocate(most_bytes);
  void* host = pool_->Allocate(bytes);
  CodecTimes times;
  absl::Status status;
  if (block == nullptr || far_block == nullptr || host == nullptr) {
    status = absl::ResourceExhaustedError("tfswap: no memory to measure the codecs in");
  } else {
    // Whoever had the addresses before has ended.
    for (const Queue queue : {Queue::kCompute, Queue::kOut, Queue::kIn}) card_->Finish(queue);
    std::memcpy(host, data, static_cast<size_t>(bytes));
    const Transfer plain{block, bytes, host, bytes};
    Transfer encoded{block, bytes, far_block, most_bytes};
    encoded.form.kind = Form::Kind::kEncoded;
    encoded.form.codec = static_cast<int>(*parsed);
    encoded.form.word_bytes = word_bytes;
    const CodecLaunch before = card_->LaunchOf(*parsed);
    card_->SetLaunch(*parsed, launch);
    // The first time, kernels are loaded.
    std::vector<CudaCard::Timed> load = {{Queue::kIn, plain}}, out = {{Queue::kOut, encoded}},
                                 in = {{Queue::kIn, encoded}}, back = {{Queue::kOut, plain}};
    status = card_->Time(&load, 1);
    for (const int count : {1, repeats}) {
      if (status.ok()) status = card_->Time(&out, count);
      if (status.ok()) status = card_->Time(&in, count);
    }
    std::memset(host, 0, static_cast<size_t>(bytes));
    if (status.ok()) status = card_->Time(&back, 1);
    card_->SetLaunch(*parsed, before);
    if (status.ok() && std::memcmp(host, data, static_cast<size_t>(bytes)) != 0) {
      status = absl::DataLossError(
          absl::StrCat("tfswap: codec '", codec, "' gives other bytes back on this card"));
    }
    if (status.ok()) {
      times = {CudaCodecs::EncodedBytes(far_block), out[0].ns / repeats, in[0].ns / repeats};
    }
  }
  if (block != nullptr) allocator_->DeallocateRaw(block);
  pool_->Free(far_block, most_bytes);
  pool_->Free(host, bytes);
  pool_->ResetPeak();  // it is to tell what was swapped
  if (!status.ok()) return status;
  return times;
}

}  // namespace tfswap
