#ifndef TFSWAP_CC_GPU_STREAM_CODECS_H_
#define TFSWAP_CC_GPU_STREAM_CODECS_H_

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "allocator/device_allocator.h"
#include "core/memory/host_pool.h"
#include "gpu/cuda_gpu.h"
#include "kernels/device_codecs.h"

namespace tfswap {

// Sets up and measures the codecs of a GPU.
class StreamCodecs : public DeviceCodecs {
 public:
  StreamCodecs(DeviceAllocator* allocator, CudaGpu* gpu, HostPool* pool)
      : allocator_(allocator), gpu_(gpu), pool_(pool) {}

  std::string DeviceName() override { return gpu_->Name(); }
  int Processors() override { return gpu_->Processors(); }
  std::string Problem() override;
  absl::Status Use(const std::string& codec, const std::string& path,
                   int64_t workspace_bytes) override;
  void Release() override;
  absl::Status TakeFault(bool wait) override;
  absl::Status SetLaunch(const std::string& codec, const CodecLaunch& launch) override;
  absl::StatusOr<CodecTimes> Measure(const std::string& codec, int word_bytes, const void* data,
                                     int64_t bytes, const CodecLaunch& launch,
                                     int repeats) override;

 private:
  DeviceAllocator* const allocator_;
  CudaGpu* const gpu_;
  // A loaded codec of nvCOMP and its memory.
  struct LoadedCodec {
    GpuCodec codec;
    std::shared_ptr<NvcompCodec> own;
    void* workspace;
    void* fault;
  };

  // Return an error unless the codec restores every byte.
  absl::Status CheckBytes(const std::string& codec);

  HostPool* const pool_;
  std::mutex mu_;
  std::vector<LoadedCodec> loaded_;  // guarded by mu_
};

}  // namespace tfswap

#endif  // TFSWAP_CC_GPU_STREAM_CODECS_H_
