#ifndef TFSWAP_CC_KERNELS_DEVICE_CODECS_H_
#define TFSWAP_CC_KERNELS_DEVICE_CODECS_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace tfswap {

// The launch configuration of a codec's kernels.
struct CodecLaunch {
  int blocks = 16;    // few, so that the rest of the GPU can compute
  int threads = 512;  // per block: whole warps, 32 to 1024
};

// The size and times of a codec for one tensor.
struct CodecTimes {
  int64_t far_bytes = 0;
  int64_t encode_ns = 0;
  int64_t decode_ns = 0;
};

// Codecs that run on a device, by name.
class DeviceCodecs {
 public:
  virtual ~DeviceCodecs() = default;

  // The name of the device, for caches of codec speeds.
  virtual std::string DeviceName() = 0;
  // The minimum number of blocks that run concurrently.
  virtual int Processors() = 0;
  // Return "" or why there are no codecs.
  virtual std::string Problem() = 0;
  // Load a codec of a library at `path` with so much device memory as workspace. Other codecs need
  // no such call.
  virtual absl::Status Use(const std::string& codec, const std::string& path,
                           int64_t workspace_bytes) = 0;
  // Unload the codecs of Use() and free their memory.
  virtual void Release() = 0;
  // Return an error if a decoding has failed since the last call, so results are wrong. `wait`:
  // block until all enqueued work has ended.
  virtual absl::Status TakeFault(bool wait) = 0;
  // Set the launch configuration of a codec.
  virtual absl::Status SetLaunch(const std::string& codec, const CodecLaunch& launch) = 0;
  // Measure an encoding and a decoding while nothing else runs; return an error if they changed a
  // byte. Needs device memory for the tensor.
  virtual absl::StatusOr<CodecTimes> Measure(const std::string& codec, int word_bytes,
                                             const void* data, int64_t bytes,
                                             const CodecLaunch& launch, int repeats) = 0;
};

}  // namespace tfswap

#endif  // TFSWAP_CC_KERNELS_DEVICE_CODECS_H_
