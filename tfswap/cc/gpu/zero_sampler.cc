#include "gpu/zero_sampler.h"

#include <algorithm>
#include <sstream>
#include <utility>

namespace tfswap {

namespace {

// So much of a tensor is looked at, spread over it.
constexpr int64_t kLookedAtBytes = int64_t{1} << 20;

}  // namespace

void ZeroSampler::SetCodecs(std::vector<Codec> codecs) {
  if (!codecs.empty() && !card_->Codecs().ok()) codecs.clear();
  std::lock_guard<std::mutex> lock(mu_);
  on_.store(!codecs.empty());
  codecs_ = std::move(codecs);
  if (found_.empty()) return;
  card_->Finish(Queue::kOut);  // which is the one that counts
  for (const auto& [label, found] : found_) numbers_.Give(found.counts);
  found_.clear();
}

void ZeroSampler::Sample(const std::string& label, const void* data, int64_t bytes,
                         int word_bytes) {
  if (!on_.load(std::memory_order_relaxed) || !CudaCodecs::IsAligned(data, nullptr)) return;
  std::lock_guard<std::mutex> lock(mu_);
  if (codecs_.empty()) return;
  auto it = found_.find(label);
  uint64_t* counts = it == found_.end() ? numbers_.Take() : it->second.counts;
  if (counts == nullptr) return;
  found_[label] = {bytes, word_bytes, counts};
  Transfer transfer{const_cast<void*>(data), bytes, counts, sizeof(CudaCodecs::ZeroCount)};
  transfer.form.kind = Form::Kind::kZeroCount;
  transfer.form.word_bytes = word_bytes;
  transfer.form.every = static_cast<int>(std::max<int64_t>(1, bytes / kLookedAtBytes));
  tracker_->MoveOut(transfer);
}

std::string ZeroSampler::Text() {
  std::lock_guard<std::mutex> lock(mu_);
  if (found_.empty()) return "";
  card_->Finish(Queue::kOut);
  std::ostringstream text;
  for (const auto& [label, found] : found_) {
    if (found.counts[1] == 0) continue;
    const double zeros =
        static_cast<double>(found.counts[0]) / static_cast<double>(found.counts[1]);
    text << label << '\t' << found.bytes << "\t0";
    for (const Codec codec : codecs_) {
      const std::optional<CardCodec> own = CardCodecOf(codec);
      text << '\t'
           << (own ? CudaCodecs::ExpectedBytes(*own, found.word_bytes, found.bytes, zeros) : 0)
           << '\t' << (own ? found.bytes : 0);
    }
    text << '\n';
  }
  return text.str();
}

}  // namespace tfswap
