#ifndef TFSWAP_CC_GPU_GPU_SAMPLER_H_
#define TFSWAP_CC_GPU_GPU_SAMPLER_H_

#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "core/gpu/hazard_tracker.h"
#include "far/ratio_sampler.h"
#include "gpu/cuda_gpu.h"
#include "gpu/pinned_numbers.h"

namespace tfswap {

// Counts zeros in the tensors that pass, on the GPU, and says what its codecs would make of them;
// nvCOMP's do not go by zeros, so they pack some sections. RatioSampler's part, which has the host
// encode sections. The host waits for the GPU when it asks for the answer, and not before.
// Thread-safe.
class GpuSampler {
 public:
  GpuSampler(CudaCard* gpu, HazardTracker* tracker, HostPool* pool)
      : gpu_(gpu), tracker_(tracker), numbers_(pool) {}

  // None: off, and what was found is forgotten.
  void SetCodecs(std::vector<Codec> codecs);
  void Sample(const std::string& label, const void* data, int64_t bytes, int word_bytes);
  // As RatioSampler's, words not counted; rle's as if zeros were each by itself.
  std::vector<CodecSample> Samples();

 private:
  struct Found {
    int64_t bytes;
    int word_bytes;
    uint64_t* counts = nullptr;                  // zeros, words
    std::map<GpuCodec, uint64_t*> weights = {};  // encoded bytes, bytes
  };

  // Has the GPU tell about a tensor. With mu_ held.
  void AskLocked(const void* data, const Found& found, Form::Kind kind, GpuCodec codec,
                 uint64_t* answer);

  CudaCard* const gpu_;
  HazardTracker* const tracker_;
  std::atomic<bool> on_{false};
  std::mutex mu_;  // of all below
  std::vector<Codec> codecs_;
  PinnedNumbers numbers_;
  std::map<std::string, Found> found_;
};

}  // namespace tfswap

#endif  // TFSWAP_CC_GPU_GPU_SAMPLER_H_
