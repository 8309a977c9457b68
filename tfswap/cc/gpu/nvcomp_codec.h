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

// A codec of nvCOMP on a GPU. nvCOMP encodes within GPU memory and needs space for the worst case,
// so tensors pass through a workspace in batches of sections, and tfswap's kernels transfer the
// encoded sections to and from far memory (cuda/batch_kernels.h).
//
//  workspace  | arrays, packed sections, temp for encoding | the same for decoding, fillers |
//
// All work is enqueued to one stream per direction without blocking the host. Far blocks and
// alignments are as for CudaCodecs. Thread-safe.
class NvcompCodec {
 public:
  using Stream = CudaDriver::Stream;

  // `workspace` is GPU memory whose previous users have ended, reserved for the lifetime of this
  // object. Returns an error if it is too small, with the minimum, or if the library cannot be used
  // here. `fault` is a zero in pinned memory. Blocks for the streams.
  static absl::StatusOr<std::unique_ptr<NvcompCodec>> Make(CudaCodecs* codecs,
                                                           const Nvcomp* library, GpuCodec codec,
                                                           void* workspace, int64_t bytes,
                                                           uint64_t* fault, Stream stream);

  // As in CudaCodecs, for tensors of whole elements.
  absl::Status Encode(int element_bytes, const void* source, int64_t bytes, void* far_block,
                      Stream stream, const CodecLaunch& launch = {}, uint64_t* far_bytes = nullptr);
  // Sections that cannot be decoded are filled with NaN or -1, and TakeFault() returns an error.
  absl::Status Decode(int element_bytes, void* target, int64_t bytes, const void* far_block,
                      Stream stream, const CodecLaunch& launch = {});
  // Write the encoded and the plain size of sections spread over a tensor to pinned memory. For the
  // encoding stream.
  absl::Status Weigh(int element_bytes, const void* source, int64_t bytes, uint64_t* weights,
                     Stream stream);

  // Return an error if a decoding has failed since the last call, as far as the GPU has reported.
  absl::Status TakeFault();

 private:
  // The buffers of one direction.
  struct Direction {
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
  // Choose the batch size that fits into the workspace.
  absl::Status Divide(void* workspace, size_t bytes, Stream stream);
  // Lay out the workspace for `sections` from `begin` on; return its size.
  absl::StatusOr<size_t> LayOut(size_t sections, uintptr_t begin, Stream stream);
  absl::Status MakeFiller(int word_bytes, Stream stream);
  absl::Status LayOutBatch(const void* source, int64_t bytes, uint32_t first, uint32_t every,
                           uint32_t count, const gpu_codec::Batch& batch,
                           CudaDriver::DevicePointer tally, Stream stream);
  absl::Status PackOnGpu(int word_bytes, uint32_t count, const gpu_codec::Batch& batch,
                         Stream stream, size_t max_bytes = gpu_codec::kBatchSectionBytes);
  absl::Status CheckTensor(int element_bytes, const void* gpu, int64_t bytes,
                           const void* far_block) const;

  CudaCodecs* const codecs_;
  const Nvcomp* const library_;
  const Nvcomp::Method& method_;
  const GpuCodec codec_;
  uint64_t* const fault_;
  Kernels kernels_ = {};
  uint32_t sections_ = 0;  // maximum per batch
  size_t packed_stride_ = 0;
  size_t filler_room_bytes_ = 0;  // packed
  Direction out_, in_;
  std::array<gpu_codec::Filler, 2> fillers_ = {};  // for elements of 4 bytes, of 2
  std::mutex mu_;                                  // held for all batches of a tensor
};

}  // namespace tfswap

#endif  // TFSWAP_CC_GPU_NVCOMP_CODEC_H_
