#ifndef TFSWAP_CC_FAR_LOSS_METER_H_
#define TFSWAP_CC_FAR_LOSS_METER_H_

#include <cstddef>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "codecs/codec_stream.h"

namespace tfswap {

// The errors of the buffers with one label.
struct Loss {
  std::string label;
  double relative_error = 0;  // root of the squared errors' sum over that of the compared values
  double largest_error = 0;
};

// How far from its source a buffer of float32 is that a lossy codec keeps: of each that leaves, one
// section in sixteen, another one each time, is decoded and compared. Thread-safe.
class LossMeter {
 public:
  void Compare(const std::string& label, const void* data, const EncodedBuffer& encoded);
  // What was found before is forgotten.
  void Reset();

  // By label.
  std::vector<Loss> Losses() const;

 private:
  struct Found {
    double squared_error = 0;
    double squared = 0;
    double largest_error = 0;
    size_t compared = 0;  // how often
  };

  mutable std::mutex mu_;
  std::map<std::string, Found> found_;
};

}  // namespace tfswap

#endif  // TFSWAP_CC_FAR_LOSS_METER_H_
