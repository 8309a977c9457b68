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

// Measures on the GPU how well its codecs compress the tensors that are copied out: it counts
// zeros, and for nvCOMP's codecs it encodes some sections. The counterpart of RatioSampler, which
// encodes on the host. Blocks for the GPU only when the results are read. Thread-safe.
class GpuSampler {
 public:
  GpuSampler(CudaGpu* gpu, HazardTracker* tracker, HostPool* pool)
      : gpu_(gpu), tracker_(tracker), numbers_(pool) {}

  // Set the codecs to measure and clear earlier results; no codecs disable the sampler.
  void SetCodecs(std::vector<Codec> codecs);
  void Sample(const std::string& label, const void* data, int64_t bytes, int word_bytes);
  // Return the results without word counts; the size of rle assumes isolated zeros.
  std::vector<CodecSample> Samples();

 private:
  struct Found {
    int64_t bytes;
    int word_bytes;
    uint64_t* counts = nullptr;                  // zeros, words
    std::map<GpuCodec, uint64_t*> weights = {};  // encoded bytes, bytes
  };

  // Enqueue a measurement of a tensor. Call with mu_ held.
  void EnqueueLocked(const void* data, const Found& found, Form::Kind kind, GpuCodec codec,
                     uint64_t* answer);

  CudaGpu* const gpu_;
  HazardTracker* const tracker_;
  std::atomic<bool> on_{false};
  std::mutex mu_;  // guards all below
  std::vector<Codec> codecs_;
  PinnedNumbers numbers_;
  std::map<std::string, Found> found_;
};

}  // namespace tfswap

#endif  // TFSWAP_CC_GPU_GPU_SAMPLER_H_
