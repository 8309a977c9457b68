#ifndef TFSWAP_CC_KERNELS_GPU_CODECS_H_
#define TFSWAP_CC_KERNELS_GPU_CODECS_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/device_codecs.h"

namespace tfswap {

// The codecs of one GPU on plain addresses, for benchmarks and tests; libtfswap_gpu implements it.
// Everything is given to a stream, and nothing is waited for. Streams are the driver's.
class GpuCodecs {
 public:
  virtual ~GpuCodecs() = default;

  // Makes one of nvCOMP's codecs work in that memory of the GPU. `fault`: 8 bytes of pinned memory.
  virtual absl::Status UseNvcomp(const std::string& codec, const std::string& path, void* workspace,
                                 int64_t bytes, uint64_t* fault, void* stream) = 0;
  // An error if nvCOMP could not decode something.
  virtual absl::Status TakeFault() = 0;

  // The size of a far block that has room for a tensor of `bytes` bytes.
  virtual int64_t MaxBytes(int64_t bytes) const = 0;
  // Of a far block whose encoding has ended.
  virtual int64_t EncodedBytes(const void* far_block) const = 0;
  virtual int64_t ZeroElements(const void* far_block) const = 0;

  virtual absl::Status Encode(const std::string& codec, int element_bytes, const void* source,
                              int64_t bytes, void* far_block, void* stream,
                              const CodecLaunch& launch) = 0;
  virtual absl::Status Decode(const std::string& codec, int element_bytes, void* target,
                              int64_t bytes, const void* far_block, void* stream,
                              const CodecLaunch& launch) = 0;
  // `count`: two numbers of 8 bytes in pinned memory, of zeros and of elements.
  virtual absl::Status CountZeros(int element_bytes, const void* source, int64_t bytes, int every,
                                  void* count, void* stream, const CodecLaunch& launch) = 0;
};

// The codecs of the stream's GPU. `folder`: where the kernels are; "": beside the library.
using MakeGpuCodecs = absl::StatusOr<std::unique_ptr<GpuCodecs>> (*)(void* stream,
                                                                     const std::string& folder);
void RegisterGpuCodecs(MakeGpuCodecs make);
// Null if libtfswap_gpu is not loaded.
MakeGpuCodecs RegisteredGpuCodecs();

}  // namespace tfswap

#endif  // TFSWAP_CC_KERNELS_GPU_CODECS_H_
