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

// What codecs would make of the buffers that pass: sections spread over each are encoded, and
// thrown away. Off until it is told by which codecs. Thread-safe.
class RatioSampler {
 public:
  // None: off. What was found before is forgotten.
  void SetCodecs(std::vector<Codec> codecs);
  bool on() const { return on_.load(std::memory_order_relaxed); }

  void Sample(const std::string& label, const void* data, int64_t bytes, int element_bytes);

  // A line for each label: its name, bytes, how many different words of 4 bytes were met (17: more
  // than 16), then encoded and sampled bytes of each codec in order; between tabs. What a codec
  // cannot encode has 0 and 0.
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
