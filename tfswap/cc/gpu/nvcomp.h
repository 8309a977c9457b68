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

// NVIDIA's library of codecs, which need not be there: opened by path at run time, once a process.
// Its interface is of C, so neither its headers nor CUDA's are needed.
class Nvcomp {
 public:
  // A codec of it, with its functions.
  class Method {
   public:
    // Of tensors with elements of 2 bytes, and of 4; sections are multiples of them.
    absl::StatusOr<size_t> MostPackedBytes(int word_bytes, size_t plain_bytes) const;
    absl::StatusOr<size_t> PackTempBytes(int word_bytes, size_t sections,
                                         nvcomp::Stream stream) const;
    absl::StatusOr<size_t> UnpackTempBytes(size_t sections, nvcomp::Stream stream) const;
    // The largest of each, of both directions.
    absl::StatusOr<nvcomp::Alignments> MostAlignments(int word_bytes) const;

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
    nvcomp::GetMostPackedBytes most_packed_bytes_ = nullptr;
    nvcomp::GetAlignments pack_alignments_ = nullptr;
    nvcomp::GetAlignments unpack_alignments_ = nullptr;
    void* pack_temp_bytes_ = nullptr;
    void* unpack_temp_bytes_ = nullptr;
  };

  // The one that was opened first, whatever the path then. An error says what to install.
  static absl::StatusOr<const Nvcomp*> Open(const std::string& path);

  // Of kLz4 and kAns.
  const Method& method(GpuCodec codec) const {
    return methods_[static_cast<int>(codec) - kCardKernels];
  }
  // "5.2.0".
  std::string Version() const;
  // The CUDA that it was built with, as 1000 * major + 10 * minor.
  int cuda_version() const { return static_cast<int>(properties_.cudart_version); }

 private:
  absl::Status Load(const std::string& path);

  nvcomp::Properties properties_ = {};
  std::array<Method, kCardCodecs - kCardKernels> methods_;
};

}  // namespace tfswap

#endif  // TFSWAP_CC_GPU_NVCOMP_H_
