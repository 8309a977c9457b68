#ifndef TFSWAP_CC_GPU_NVCOMP_CODEC_H_
#define TFSWAP_CC_GPU_NVCOMP_CODEC_H_

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cuda/codec_format.h"
#include "gpu/cuda_codecs.h"
#include "gpu/nvcomp.h"

namespace tfswap {

// One of nvCOMP's codecs on a GPU. nvCOMP packs from the GPU's memory to the GPU's memory, and
// wants room for the worst: so tensors go through a workspace, as many sections at once as it has
// room for, and kernels of ours move what is packed between it and far memory
// (cuda/batch_kernels.h).
//
//   workspace  | arrays, packed sections, temp of the way out | the same of the way in, fillers |
//
// Everything is given to a stream, one for each way, and the host waits for nothing. The far block
// is as CudaCodecs's, as are alignments. Thread-safe.
class NvcompCodec {
 public:
  using Stream = CudaDriver::Stream;

  // `workspace`: the GPU's memory, whose former users have ended; nobody else's until this is
  // gone. An error says how much it takes at least, or why this library does not do here. `fault`:
  // a number in pinned memory, 0. Waits for the streams.
  static absl::StatusOr<std::unique_ptr<NvcompCodec>> Make(CudaCodecs* codecs,
                                                           const Nvcomp* library, GpuCodec codec,
                                                           void* workspace, int64_t bytes,
                                                           uint64_t* fault, Stream stream);

  // As CudaCodecs's. Of a tensor that is a whole number of elements.
  absl::Status Encode(int element_bytes, const void* source, int64_t bytes, void* far_block,
                      Stream stream, const CodecLaunch& launch = {}, uint64_t* far_bytes = nullptr);
  // What cannot be decoded becomes NaN, or -1, and TakeFault() tells.
  absl::Status Decode(int element_bytes, void* target, int64_t bytes, const void* far_block,
                      Stream stream, const CodecLaunch& launch = {});
  // What sections spread over a tensor become, and what they were: two numbers in pinned memory.
  // For the stream that encodes.
  absl::Status Weigh(int element_bytes, const void* source, int64_t bytes, uint64_t* weights,
                     Stream stream);

  // Whether something could not be decoded since the last call, as far as the GPU has told.
  absl::Status TakeFault();

 private:
  // Of one way.
  struct Room {
    gpu_codec::Batch batch = {};
    void* temp = nullptr;
    size_t temp_bytes = 0;
  };
  struct Kernels {
    CudaDriver::Function lay, pack, unpack, check, weigh;
  };

  NvcompCodec(CudaCodecs* codecs, const Nvcomp* library, GpuCodec codec, uint64_t* fault)
      : codecs_(codecs),
        library_(library),
        method_(library->method(codec)),
        codec_(codec),
        fault_(fault) {}

  absl::Status CheckLibrary();
  absl::Status TakeKernels();
  // Divides the workspace among as many sections as it has room for.
  absl::Status Divide(void* workspace, size_t bytes, Stream stream);
  // Lays it out for so many sections from `begin` on; answers its bytes.
  absl::StatusOr<size_t> LayOut(size_t sections, uintptr_t begin, Stream stream);
  absl::Status MakeFiller(int word_bytes, Stream stream);
  absl::Status Lay(const void* source, int64_t bytes, uint32_t first, uint32_t every,
                   uint32_t count, const gpu_codec::Batch& batch, CudaDriver::DevicePointer tally,
                   Stream stream);
  absl::Status PackOnCard(int word_bytes, uint32_t count, const gpu_codec::Batch& batch,
                          Stream stream, size_t most_bytes = gpu_codec::kBatchSectionBytes);
  absl::Status CheckTensor(int element_bytes, const void* gpu, int64_t bytes,
                           const void* far_block) const;

  CudaCodecs* const codecs_;
  const Nvcomp* const library_;
  const Nvcomp::Method& method_;
  const GpuCodec codec_;
  uint64_t* const fault_;
  Kernels kernels_ = {};
  uint32_t sections_ = 0;  // of a batch, at most
  size_t packed_stride_ = 0;
  size_t filler_room_bytes_ = 0;  // packed
  Room out_, in_;
  std::array<gpu_codec::Filler, 2> fillers_ = {};  // of elements of 4 bytes, of 2
  std::mutex mu_;                                  // batches of a tensor come one after the other
};

}  // namespace tfswap

#endif  // TFSWAP_CC_GPU_NVCOMP_CODEC_H_
