#ifndef TFSWAP_CC_GPU_CUDA_CODECS_H_
#define TFSWAP_CC_GPU_CUDA_CODECS_H_

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "codecs/codec.h"
#include "cuda/codec_format.h"
#include "gpu/cuda_driver.h"
#include "kernels/device_codecs.h"

namespace tfswap {

enum class GpuCodec : int {
  kZvc = gpu_codec::kZvc,
  kRle = gpu_codec::kRle,
  kCsr = gpu_codec::kCsr,
  kLz4 = gpu_codec::kLz4,
  kAns = gpu_codec::kAns
};
inline constexpr int kGpuCodecs = 5;
// The first ones are tfswap's kernels; the others are nvCOMP's (gpu/nvcomp_codec.h).
inline constexpr int kGpuKernels = 3;
constexpr bool UsesNvcomp(GpuCodec codec) { return static_cast<int>(codec) >= kGpuKernels; }

// "zvc", "rle", "csr", "lz4", "ans".
const char* GpuCodecName(GpuCodec codec);
// No value for codecs that only the host has.
std::optional<GpuCodec> GpuCodecOf(Codec codec);
// Return an error that lists the codecs if there is none of this name.
absl::StatusOr<GpuCodec> ParseGpuCodec(std::string_view name);

// Encodes tensors on a GPU directly into far memory, and decodes them from there, so that only
// encoded data cross the link (format: cuda/codec_format.h). All work is enqueued to a stream
// without blocking the host; the caller orders it, as for any copy.
//
// Addresses on the GPU must be multiples of 16 bytes. Far blocks must be pinned, aligned to 128
// bytes, and have MaxBytes(). Lossless; a word is zero if no bit is set. Thread-safe.
class CudaCodecs {
 public:
  using Stream = CudaDriver::Stream;

  // `folder` contains the kernels. Returns an error that explains why there are no codecs: tfswap
  // was built without nvcc, or the driver is too old for that nvcc.
  static absl::StatusOr<std::unique_ptr<CudaCodecs>> Make(const CudaDriver* driver,
                                                          CudaDriver::Context context,
                                                          const std::string& folder);
  // The GPU must be idle.
  ~CudaCodecs();
  CudaCodecs(const CudaCodecs&) = delete;
  CudaCodecs& operator=(const CudaCodecs&) = delete;

  // Return the maximum size of the far block of a tensor.
  static int64_t MaxBytes(int64_t bytes);
  // Return the expected size for a share of zeros at independent positions. rle does better if the
  // zeros are adjacent.
  static int64_t ExpectedBytes(GpuCodec codec, int element_bytes, int64_t bytes, double zeros);
  // Return whether the addresses have the required alignment.
  static bool IsAligned(const void* gpu, const void* far_block);

  // Return an error for an invalid launch.
  static absl::Status CheckLaunch(const CodecLaunch& launch);
  // Return an error for a tensor, or a far block unless null, that the codecs cannot process.
  static absl::Status Check(int element_bytes, const void* gpu, int64_t bytes,
                            const void* far_block);

  // Encode with one of tfswap's codecs. `element_bytes` is 4 or 2; an odd rest is stored
  // uncompressed. `far_bytes`, in pinned memory or null, is set to EncodedBytes() when the encoding
  // ends, whatever has happened to the far block by then.
  absl::Status Encode(GpuCodec codec, int element_bytes, const void* source, int64_t bytes,
                      void* far_block, Stream stream, const CodecLaunch& launch = {},
                      uint64_t* far_bytes = nullptr);
  // Decode; requires the codec, element size and bytes of the encoding, with any launch.
  absl::Status Decode(GpuCodec codec, int element_bytes, void* target, int64_t bytes,
                      const void* far_block, Stream stream, const CodecLaunch& launch = {});

  // Of a far block whose encoding has ended: its bytes, and the number of zero elements.
  static int64_t EncodedBytes(const void* far_block);
  static int64_t ZeroElements(const void* far_block);

  // Count zeros in every `every`-th 4 KiB; the result is in pinned memory.
  using ZeroCount = gpu_codec::ZeroCount;
  absl::Status CountZeros(int element_bytes, const void* source, int64_t bytes, int every,
                          ZeroCount* count, Stream stream, const CodecLaunch& launch = {});

  // For other codecs with kernels in the same module.
  using Function = CudaDriver::Function;
  absl::StatusOr<Function> Kernel(const char* name) const;
  absl::Status Start(const char* doing, Function function, Stream stream, const CodecLaunch& launch,
                     void** arguments);
  // Return the counters of a stream; kernels on different streams may run concurrently.
  absl::StatusOr<CudaDriver::DevicePointer> TallyOf(Stream stream);
  const CudaDriver* driver() const { return driver_; }
  CudaDriver::Context context() const { return context_; }

 private:
  struct Kernels {  // for one element size
    std::array<Function, kGpuKernels> encode;
    std::array<Function, kGpuKernels> decode;
    Function count_zeros;
  };

  CudaCodecs(const CudaDriver* driver, CudaDriver::Context context)
      : driver_(driver), context_(context) {}

  absl::Status Load(const std::string& folder);
  const Kernels& KernelsOf(int element_bytes) const { return kernels_[element_bytes == 2]; }

  const CudaDriver* const driver_;
  const CudaDriver::Context context_;
  CudaDriver::Module module_ = nullptr;
  std::array<Kernels, 2> kernels_ = {};
  CudaDriver::DevicePointer tallies_ = 0;
  std::mutex mu_;
  std::map<Stream, int> tally_of_;
};

}  // namespace tfswap

#endif  // TFSWAP_CC_GPU_CUDA_CODECS_H_
