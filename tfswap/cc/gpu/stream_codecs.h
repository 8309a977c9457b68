#ifndef TFSWAP_GPU_STREAM_CODECS_H_
#define TFSWAP_GPU_STREAM_CODECS_H_

#include <string>

#include "allocator/device_allocator.h"
#include "core/host_pool.h"
#include "gpu/cuda_card.h"
#include "kernels/device_codecs.h"

namespace tfswap {

// A card's codecs, to be set up and measured.
class StreamCodecs : public DeviceCodecs {
 public:
  StreamCodecs(DeviceAllocator* allocator, CudaCard* card, HostPool* pool)
      : allocator_(allocator), card_(card), pool_(pool) {}

  std::string DeviceName() override { return card_->Name(); }
  int Processors() override { return card_->Processors(); }
  std::string Problem() override;
  absl::Status SetLaunch(const std::string& codec, const CodecLaunch& launch) override;
  absl::StatusOr<CodecTimes> Measure(const std::string& codec, int word_bytes, const void* data,
                                     int64_t bytes, const CodecLaunch& launch,
                                     int repeats) override;

 private:
  DeviceAllocator* const allocator_;
  CudaCard* const card_;
  HostPool* const pool_;
};

}  // namespace tfswap

#endif  // TFSWAP_GPU_STREAM_CODECS_H_
