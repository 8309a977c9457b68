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
inline constexpr int kCardCodecs = 5;
// The first ones are kernels of ours; the others are nvCOMP's (gpu/nvcomp_codec.h).
inline constexpr int kCardKernels = 3;
constexpr bool IsOfNvcomp(GpuCodec codec) { return static_cast<int>(codec) >= kCardKernels; }

// "zvc", "rle", "csr", "lz4", "ans".
const char* GpuCodecName(GpuCodec codec);
// None for those that only the host has.
std::optional<GpuCodec> GpuCodecOf(Codec codec);
// What there is not is refused with a list of what there is.
absl::StatusOr<GpuCodec> ParseCardCodec(std::string_view name);

// Encodes on a GPU, straight into far memory, and decodes from there: only what is encoded crosses
// the link (cuda/codec_format.h says how it lies). Everything is given to a stream, and the host
// waits for nothing; what has to wait for what is the caller's business, as for any copy.
//
// Addresses on the GPU are multiples of 16 bytes, far blocks begin at 128 bytes, have MostBytes(),
// and are pinned. Zero is what has no bit set, and each bit comes back. Thread-safe.
class CudaCodecs {
 public:
  using Stream = CudaDriver::Stream;

  // `folder`: where the kernels are, beside the library. An error says why there are no codecs
  // here: tfswap was built without nvcc, or the driver is too old for the nvcc that it was built
  // with.
  static absl::StatusOr<std::unique_ptr<CudaCodecs>> Make(const CudaDriver* driver,
                                                          CudaDriver::Context context,
                                                          const std::string& folder);
  // When the GPU has done all that it was given.
  ~CudaCodecs();
  CudaCodecs(const CudaCodecs&) = delete;
  CudaCodecs& operator=(const CudaCodecs&) = delete;

  // How long the far block of a tensor can become, whatever is in it.
  static int64_t MostBytes(int64_t bytes);
  // How long it becomes if so many of its elements are zero, each by itself. rle does better the
  // more of them lie together.
  static int64_t ExpectedBytes(GpuCodec codec, int element_bytes, int64_t bytes, double zeros);
  // What is asked of memory on the GPU and far memory.
  static bool IsAligned(const void* gpu, const void* far_block);

  // Refuses what no kernel can be started by.
  static absl::Status CheckLaunch(const CodecLaunch& launch);
  // Refuses a tensor, and a far block if there is one, that no codec here takes.
  static absl::Status Check(int element_bytes, const void* gpu, int64_t bytes,
                            const void* far_block);

  // `codec`: one of ours. `element_bytes`: 4, or 2. An odd rest is stored as it is. `far_bytes`, in
  // pinned memory, becomes EncodedBytes() when the encoding ends, whoever has the far block then;
  // or null.
  absl::Status Encode(GpuCodec codec, int element_bytes, const void* source, int64_t bytes,
                      void* far_block, Stream stream, const CodecLaunch& launch = {},
                      uint64_t* far_bytes = nullptr);
  // The same codec, size of elements and bytes; any launch.
  absl::Status Decode(GpuCodec codec, int element_bytes, void* target, int64_t bytes,
                      const void* far_block, Stream stream, const CodecLaunch& launch = {});

  // Of a far block whose encoding has ended: all its bytes, and how many elements were zero.
  static int64_t EncodedBytes(const void* far_block);
  static int64_t ZeroElements(const void* far_block);

  // Looks at every `every`th 4 KiB; into pinned memory.
  using ZeroCount = gpu_codec::ZeroCount;
  absl::Status CountZeros(int element_bytes, const void* source, int64_t bytes, int every,
                          ZeroCount* count, Stream stream, const CodecLaunch& launch = {});

  // For other codecs that have kernels in the same module.
  using Function = CudaDriver::Function;
  absl::StatusOr<Function> Kernel(const char* name) const;
  absl::Status Start(const char* doing, Function function, Stream stream, const CodecLaunch& launch,
                     void** arguments);
  // Of a stream's own: what runs on several may run at once.
  absl::StatusOr<CudaDriver::DevicePointer> TallyOf(Stream stream);
  const CudaDriver* driver() const { return driver_; }
  CudaDriver::Context context() const { return context_; }

 private:
  struct Kernels {  // of one size of elements
    std::array<Function, kCardKernels> encode;
    std::array<Function, kCardKernels> decode;
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
