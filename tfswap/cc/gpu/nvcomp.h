#ifndef TFSWAP_CC_GPU_NVCOMP_H_
#define TFSWAP_CC_GPU_NVCOMP_H_

#include <array>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gpu/cuda_codecs.h"
#include "gpu/nvcomp_api.h"

namespace tfswap {

// NVIDIA's library of codecs, which is optional: loaded by path at run time, once per process. It
// has a C interface, so neither its headers nor CUDA's are needed.
class Nvcomp {
 public:
  // A codec of the library with its functions.
  class Method {
   public:
    // For tensors with elements of 2 or 4 bytes; sections are multiples of them.
    absl::StatusOr<size_t> MaxPackedBytes(int word_bytes, size_t plain_bytes) const;
    absl::StatusOr<size_t> PackTempBytes(int word_bytes, size_t sections,
                                         nvcomp::Stream stream) const;
    absl::StatusOr<size_t> UnpackTempBytes(size_t sections, nvcomp::Stream stream) const;
    // The maximum alignments of both directions.
    absl::StatusOr<nvcomp::Alignments> MaxAlignments(int word_bytes) const;

    nvcomp::Options PackOptions(int word_bytes) const { return pack_options_[word_bytes == 2]; }
    nvcomp::Options unpack_options() const { return unpack_options_; }

    nvcomp::Pack pack = nullptr;
    nvcomp::Unpack unpack = nullptr;

   private:
    friend class Nvcomp;
    absl::StatusOr<size_t> TempBytes(void* function, nvcomp::Options options, size_t sections,
                                     nvcomp::Stream stream) const;

    const char* name_ = nullptr;
    bool temp_takes_stream_ = false;
    std::array<nvcomp::Options, 2> pack_options_ = {};
    nvcomp::Options unpack_options_ = {};
    nvcomp::GetMaxPackedBytes max_packed_bytes_ = nullptr;
    nvcomp::GetAlignments pack_alignments_ = nullptr;
    nvcomp::GetAlignments unpack_alignments_ = nullptr;
    void* pack_temp_bytes_ = nullptr;
    void* unpack_temp_bytes_ = nullptr;
  };

  // Returns the library that was opened first, whatever the path of later calls. Errors name the
  // package to install.
  static absl::StatusOr<const Nvcomp*> Open(const std::string& path);

  // For kLz4 and kAns.
  const Method& method(GpuCodec codec) const {
    return methods_[static_cast<int>(codec) - kGpuKernels];
  }
  // "5.2.0".
  std::string Version() const;
  // The CUDA release it was built with, as 1000 * major + 10 * minor.
  int cuda_version() const { return static_cast<int>(properties_.cudart_version); }

 private:
  absl::Status Load(const std::string& path);

  nvcomp::Properties properties_ = {};
  std::array<Method, kGpuCodecs - kGpuKernels> methods_;
};

}  // namespace tfswap

#endif  // TFSWAP_CC_GPU_NVCOMP_H_
