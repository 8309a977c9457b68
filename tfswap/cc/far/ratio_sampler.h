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

// What codecs make of the tensors with one label.
struct CodecSample {
  std::string label;
  // How many different words of 4 bytes there are; 17: more than 16, 0: not counted.
  int64_t different_words = 0;
  // By codec: encoded bytes by sampled bytes. Without codecs that cannot encode the tensor.
  std::map<std::string, double> ratios = {};
};

// What codecs would make of the buffers that pass: sections spread over each are encoded, and
// thrown away. Off until it is told by which codecs. Thread-safe.
class RatioSampler {
 public:
  // None: off. What was found before is forgotten.
  void SetCodecs(std::vector<Codec> codecs);
  bool on() const { return on_.load(std::memory_order_relaxed); }

  void Sample(const std::string& label, const void* data, int64_t bytes, int element_bytes);

  // By label.
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
