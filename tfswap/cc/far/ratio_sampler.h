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

// Measures how well codecs compress the buffers that are copied out: sections of each buffer are
// encoded and discarded. Disabled until codecs are set. Thread-safe.
class RatioSampler {
 public:
  // Set the codecs to measure and clear earlier results; no codecs disable the sampler.
  void SetCodecs(std::vector<Codec> codecs);
  bool on() const { return on_.load(std::memory_order_relaxed); }

  void Sample(const std::string& label, const void* data, int64_t bytes, int element_bytes);

  // Return a line per label, separated by tabs: name, bytes, number of different 4-byte words (17:
  // more than 16), then encoded and sampled bytes of each codec in order. Both are 0 if the codec
  // cannot encode the buffer.
  std::string Text() const;

 private:
  struct Found {
    int64_t bytes = 0;
    size_t different_words = 0;
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
