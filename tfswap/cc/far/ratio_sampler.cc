#include "far/ratio_sampler.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace tfswap {

namespace {

constexpr int64_t kSamples = 8;
constexpr int64_t kSampleBytes = 64 << 10;
// Masks have fewer different words.
constexpr size_t kMaxCountedWords = 17;

void CountWords(const char* data, size_t bytes, std::vector<uint32_t>* different) {
  for (size_t at = 0; at < bytes && different->size() < kMaxCountedWords; at += 4) {
    uint32_t word;
    std::memcpy(&word, data + at, sizeof(word));
    if (std::find(different->begin(), different->end(), word) == different->end()) {
      different->push_back(word);
    }
  }
}

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
  Found found{0, std::vector<int64_t>(codecs.size()), std::vector<int64_t>(codecs.size())};
  std::vector<uint32_t> different_words;
  std::vector<char> encoded(MaxEncodedBytes(kSampleBytes));
  const int64_t stride = std::max(kSampleBytes, bytes / kSamples / 64 * 64);
  for (int64_t at = 0; at + kSampleBytes <= bytes; at += stride) {
    const char* const section = static_cast<const char*>(data) + at;
    CountWords(section, kSampleBytes, &different_words);
    for (size_t i = 0; i < codecs.size(); ++i) {
      const CodecSpec spec{codecs[i], element_bytes};
      found.encoded_bytes[i] +=
          static_cast<int64_t>(EncodeSection(spec, section, kSampleBytes, encoded.data()));
      found.sampled_bytes[i] += kSampleBytes;
    }
  }
  found.different_words = static_cast<int64_t>(different_words.size());
  std::lock_guard<std::mutex> lock(mu_);
  if (codecs == codecs_) found_[label] = std::move(found);
}

std::vector<CodecSample> RatioSampler::Samples() const {
  std::lock_guard<std::mutex> lock(mu_);
  std::vector<CodecSample> samples;
  for (const auto& [label, found] : found_) {
    CodecSample sample{label, found.different_words};
    for (size_t i = 0; i < codecs_.size(); ++i) {
      if (found.sampled_bytes[i] == 0) continue;
      sample.ratios[CodecName(codecs_[i])] =
          static_cast<double>(found.encoded_bytes[i]) / static_cast<double>(found.sampled_bytes[i]);
    }
    samples.push_back(std::move(sample));
  }
  return samples;
}

}  // namespace tfswap
