#ifndef TFSWAP_CC_KERNELS_DEVICE_CODECS_H_
#define TFSWAP_CC_KERNELS_DEVICE_CODECS_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace tfswap {

// How a codec's kernels are started.
struct CodecLaunch {
  int blocks = 16;    // few, so that the rest of the GPU goes on computing
  int threads = 512;  // a block's: whole warps, 32 to 1024
};

// What one codec made of one tensor.
struct CodecTimes {
  int64_t far_bytes = 0;
  int64_t encode_ns = 0;
  int64_t decode_ns = 0;
};

// Codecs that are a device's own work, by name.
class DeviceCodecs {
 public:
  virtual ~DeviceCodecs() = default;

  // The device, as far as it decides how fast they are.
  virtual std::string DeviceName() = 0;
  // How many blocks of a launch it can run at once, at the least.
  virtual int Processors() = 0;
  // "" or why there are none.
  virtual std::string Problem() = 0;
  // Has a codec work that is a library's, at `path`, in so much of the device's memory, which is
  // taken now. The others need none of this.
  virtual absl::Status Use(const std::string& codec, const std::string& path,
                           int64_t workspace_bytes) = 0;
  // Gives back what Use() took; nothing is encoded by those codecs any more.
  virtual void Release() = 0;
  // An error if something could not be decoded since the last call: numbers are lost. `wait`: for
  // all that the device was given.
  virtual absl::Status TakeFault(bool wait) = 0;
  // From now on.
  virtual absl::Status SetLaunch(const std::string& codec, const CodecLaunch& launch) = 0;
  // There and back, while nothing else runs; an error also if that changed a byte. Needs memory on
  // the device for the tensor.
  virtual absl::StatusOr<CodecTimes> Measure(const std::string& codec, int word_bytes,
                                             const void* data, int64_t bytes,
                                             const CodecLaunch& launch, int repeats) = 0;
};

}  // namespace tfswap

#endif  // TFSWAP_CC_KERNELS_DEVICE_CODECS_H_
