#ifndef TFSWAP_CC_GPU_NVCOMP_API_H_
#define TFSWAP_CC_GPU_NVCOMP_API_H_

#include <cstddef>
#include <cstdint>

#include "gpu/cuda_driver.h"

// nvCOMP's batched interface as far as it is used here, of releases 5 and 6: names, arguments and
// numbers are those of its headers. Release 4 has other arguments. "Device-accessible" is all
// memory behind pointers, but for results of one number, which are the host's.
namespace tfswap::nvcomp {

using Status = int;
constexpr Status kSuccess = 0;

// Compression: LZ4's type of data; ANS's algorithm, type of data. Decompression: backend; for ANS,
// type of data. All other bytes are to be zero in all of these releases, and their sizes are equal.
struct Options {
  int32_t first;
  int32_t second;
  char zeros[56];
};
static_assert(sizeof(Options) == 64, "as in nvCOMP's headers");

// Types of data.
constexpr int32_t kChar = 0, kShort = 2, kInt = 4, kBits = 0xff;
constexpr int32_t kFloat16Of5 = 9, kFloat16Of6 = 10, kFloat32Of6 = 11;
// The one that has statuses: what a GPU's engine for it unpacks is always called a success.
constexpr int32_t kBackendCuda = 2;

struct Properties {
  uint32_t version;         // 1000 * major + 100 * minor + patch
  uint32_t cudart_version;  // 1000 * major + 10 * minor
};

struct Alignments {
  size_t input;
  size_t output;
  size_t temp;
};

using Stream = CudaDriver::Stream;
using GetProperties = Status (*)(Properties* properties);
using GetAlignments = Status (*)(Options options, Alignments* alignments);
using GetMostPackedBytes = Status (*)(size_t most_plain_bytes, Options options,
                                      size_t* most_packed_bytes);
// Of packing and of unpacking.
using GetTempBytes5 = Status (*)(size_t sections, size_t most_plain_bytes, Options options,
                                 size_t* temp_bytes, size_t all_plain_bytes);
using GetTempBytes6 = Status (*)(size_t sections, size_t most_plain_bytes, Options options,
                                 size_t* temp_bytes, size_t all_plain_bytes, Stream stream);
using Pack = Status (*)(const void* const* plain, const size_t* plain_bytes,
                        size_t most_plain_bytes, size_t sections, void* temp, size_t temp_bytes,
                        void* const* packed, size_t* packed_bytes, Options options,
                        Status* statuses, Stream stream);
using Unpack = Status (*)(const void* const* packed, const size_t* packed_bytes,
                          const size_t* room_bytes, size_t* plain_bytes, size_t sections,
                          void* temp, size_t temp_bytes, void* const* plain, Options options,
                          Status* statuses, Stream stream);

}  // namespace tfswap::nvcomp

#endif  // TFSWAP_CC_GPU_NVCOMP_API_H_
