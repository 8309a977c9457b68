#include "far/ratio_sampler.h"

#include <algorithm>
#include <sstream>
#include <utility>

namespace tfswap {

namespace {

constexpr int64_t kSamples = 8;
constexpr int64_t kSampleBytes = 64 << 10;

}  // namespace

void RatioSampler::SetCodecs(std::vector<Codec> codecs) {
  std::lock_guard<std::mutex> lock(mu_);
  on_.store(!codecs.empty());
  if (codecs.empty()) return;
  codecs_ = std::move(codecs);
  found_.clear();
}

void RatioSampler::Sample(const std::string& label, const void* data, int64_t bytes,
                          int element_bytes) {
  std::vector<Codec> codecs;
  {
    std::lock_guard<std::mutex> lock(mu_);
    codecs = codecs_;
  }
  Found found{bytes, std::vector<int64_t>(codecs.size()), std::vector<int64_t>(codecs.size())};
  std::vector<char> encoded(MostEncodedBytes(kSampleBytes));
  const int64_t stride = std::max(kSampleBytes, bytes / kSamples / 64 * 64);
  for (int64_t at = 0; at + kSampleBytes <= bytes; at += stride) {
    for (size_t i = 0; i < codecs.size(); ++i) {
      const CodecSpec spec{codecs[i], element_bytes};
      found.encoded_bytes[i] += static_cast<int64_t>(
          EncodeSection(spec, static_cast<const char*>(data) + at, kSampleBytes, encoded.data()));
      found.sampled_bytes[i] += kSampleBytes;
    }
  }
  std::lock_guard<std::mutex> lock(mu_);
  if (codecs == codecs_) found_[label] = std::move(found);
}

std::string RatioSampler::Text() const {
  std::lock_guard<std::mutex> lock(mu_);
  std::ostringstream text;
  for (const auto& [label, found] : found_) {
    text << label << '\t' << found.bytes;
    for (size_t i = 0; i < found.encoded_bytes.size(); ++i) {
      text << '\t' << found.encoded_bytes[i] << '\t' << found.sampled_bytes[i];
    }
    text << '\n';
  }
  return text.str();
}

}  // namespace tfswap
