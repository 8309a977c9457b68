#include "gpu/gpu_sampler.h"

#include <algorithm>
#include <utility>

namespace tfswap {

namespace {

// The bytes to sample, spread over a tensor.
constexpr int64_t kSampledBytes = int64_t{1} << 20;

}  // namespace

void GpuSampler::SetCodecs(std::vector<Codec> codecs) {
  if (!codecs.empty() && !gpu_->Codecs().ok()) codecs.clear();
  std::lock_guard<std::mutex> lock(mu_);
  on_.store(!codecs.empty());
  codecs_ = std::move(codecs);
  if (found_.empty()) return;
  gpu_->Finish(Queue::kOut);  // the queue that runs the counts
  for (const auto& [label, found] : found_) {
    numbers_.Give(found.counts);
    for (const auto& [codec, weights] : found.weights) numbers_.Give(weights);
  }
  found_.clear();
}

void GpuSampler::Sample(const std::string& label, const void* data, int64_t bytes, int word_bytes) {
  if (!on_.load(std::memory_order_relaxed) || !CudaCodecs::IsAligned(data, nullptr)) return;
  std::lock_guard<std::mutex> lock(mu_);
  if (codecs_.empty()) return;
  Found& found = found_[label];
  if (found.counts == nullptr) found.counts = numbers_.Take();
  if (found.counts == nullptr) {
    found_.erase(label);
    return;
  }
  found.bytes = bytes;
  found.word_bytes = word_bytes;
  EnqueueLocked(data, found, Form::Kind::kZeroCount, GpuCodec::kZvc, found.counts);
  for (const Codec codec : codecs_) {
    const std::optional<GpuCodec> own = GpuCodecOf(codec);
    if (!own || gpu_->Nvcomp(*own) == nullptr) continue;
    uint64_t*& weights = found.weights[*own];
    if (weights == nullptr) weights = numbers_.Take();
    if (weights == nullptr) {
      found.weights.erase(*own);
      continue;
    }
    EnqueueLocked(data, found, Form::Kind::kWeights, *own, weights);
  }
}

void GpuSampler::EnqueueLocked(const void* data, const Found& found, Form::Kind kind,
                               GpuCodec codec, uint64_t* answer) {
  Transfer transfer{const_cast<void*>(data), found.bytes, answer, 2 * sizeof(uint64_t)};
  transfer.form.kind = kind;
  transfer.form.codec = static_cast<int>(codec);
  transfer.form.word_bytes = found.word_bytes;
  transfer.form.every = static_cast<int>(std::max<int64_t>(1, found.bytes / kSampledBytes));
  tracker_->MoveOut(transfer);
}

std::vector<CodecSample> GpuSampler::Samples() {
  std::lock_guard<std::mutex> lock(mu_);
  if (found_.empty()) return {};
  gpu_->Finish(Queue::kOut);
  std::vector<CodecSample> samples;
  for (const auto& [label, found] : found_) {
    if (found.counts[1] == 0) continue;
    const double zeros =
        static_cast<double>(found.counts[0]) / static_cast<double>(found.counts[1]);
    CodecSample sample{label};
    for (const Codec codec : codecs_) {
      const std::optional<GpuCodec> own = GpuCodecOf(codec);
      if (!own) continue;
      auto encoded = static_cast<double>(
          CudaCodecs::ExpectedBytes(*own, found.word_bytes, found.bytes, zeros));
      auto sampled = static_cast<double>(found.bytes);
      if (UsesNvcomp(*own)) {
        const auto weights = found.weights.find(*own);
        if (weights == found.weights.end()) continue;
        encoded = static_cast<double>(weights->second[0]);
        sampled = static_cast<double>(weights->second[1]);
      }
      if (sampled > 0) sample.ratios[CodecName(codec)] = encoded / sampled;
    }
    samples.push_back(std::move(sample));
  }
  return samples;
}

}  // namespace tfswap
