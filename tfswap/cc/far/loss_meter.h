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
  double relative_error = 0;  // root of the sum of squared errors by the sum of squares
  double largest_error = 0;
};

// Measures the error of lossy codecs on float32 buffers: of each buffer that is copied out, every
// sixteenth section, rotating, is decoded and compared. Thread-safe.
class LossMeter {
 public:
  void Compare(const std::string& label, const void* data, const EncodedBuffer& encoded);
  void Reset();

  // Return the errors by label.
  std::vector<Loss> Losses() const;

 private:
  struct Found {
    double squared_error = 0;
    double squared = 0;
    double largest_error = 0;
    size_t compared = 0;  // number of comparisons
  };

  mutable std::mutex mu_;
  std::map<std::string, Found> found_;
};

}  // namespace tfswap

#endif  // TFSWAP_CC_FAR_LOSS_METER_H_
