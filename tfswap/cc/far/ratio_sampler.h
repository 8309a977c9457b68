#ifndef TFSWAP_CC_FAR_RATIO_SAMPLER_H_
#define TFSWAP_CC_FAR_RATIO_SAMPLER_H_

#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "codecs/codec.h"

namespace tfswap {

// How well codecs compress the buffers with one label.
struct CodecSample {
  std::string label;
  // Number of different 4-byte words; 17: more than 16, 0: not counted.
  int64_t different_words = 0;
  // Encoded bytes by sampled bytes, by codec; without codecs that cannot encode the buffer.
  std::map<std::string, double> ratios = {};
};

// Measures how well codecs compress the buffers that are copied out: sections of each buffer are
// encoded and discarded. Disabled until codecs are set. Thread-safe.
class RatioSampler {
 public:
  // Set the codecs to measure and clear earlier results; no codecs disable the sampler.
  void SetCodecs(std::vector<Codec> codecs);
  bool on() const { return on_.load(std::memory_order_relaxed); }

  void Sample(const std::string& label, const void* data, int64_t bytes, int element_bytes);

  // Return the results by label.
  std::vector<CodecSample> Samples() const;

 private:
  struct Found {
    int64_t different_words = 0;
    std::vector<int64_t> encoded_bytes;  // by codec
    std::vector<int64_t> sampled_bytes;
  };

  std::atomic<bool> on_{false};
  mutable std::mutex mu_;
  std::vector<Codec> codecs_;
  std::map<std::string, Found> found_;
};

}  // namespace tfswap

#endif  // TFSWAP_CC_FAR_RATIO_SAMPLER_H_
