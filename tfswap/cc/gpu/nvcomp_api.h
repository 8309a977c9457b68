#ifndef TFSWAP_CC_GPU_NVCOMP_API_H_
#define TFSWAP_CC_GPU_NVCOMP_API_H_

#include <cstddef>
#include <cstdint>

#include "gpu/cuda_driver.h"

// The used part of nvCOMP's batched interface, releases 5 and 6: names, arguments and constants are
// those of its headers. Release 4 has different arguments. All pointers are device-accessible
// memory, except for single-number results, which are in host memory.
namespace tfswap::nvcomp {

using Status = int;
constexpr Status kSuccess = 0;

// Compression: the data type of LZ4; algorithm and data type of ANS. Decompression: backend; for
// ANS, data type. All other bytes must be zero in all of these releases, and the sizes are equal.
struct Options {
  int32_t first;
  int32_t second;
  char zeros[56];
};
static_assert(sizeof(Options) == 64, "as in nvCOMP's headers");

// Data types.
constexpr int32_t kChar = 0, kShort = 2, kInt = 4, kBits = 0xff;
constexpr int32_t kFloat16Of5 = 9, kFloat16Of6 = 10, kFloat32Of6 = 11;
// The backend that reports statuses; the hardware decompression engine always reports success.
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
using GetMaxPackedBytes = Status (*)(size_t max_plain_bytes, Options options,
                                     size_t* max_packed_bytes);
// For packing and for unpacking.
using GetTempBytes5 = Status (*)(size_t sections, size_t max_plain_bytes, Options options,
                                 size_t* temp_bytes, size_t all_plain_bytes);
using GetTempBytes6 = Status (*)(size_t sections, size_t max_plain_bytes, Options options,
                                 size_t* temp_bytes, size_t all_plain_bytes, Stream stream);
using Pack = Status (*)(const void* const* plain, const size_t* plain_bytes, size_t max_plain_bytes,
                        size_t sections, void* temp, size_t temp_bytes, void* const* packed,
                        size_t* packed_bytes, Options options, Status* statuses, Stream stream);
using Unpack = Status (*)(const void* const* packed, const size_t* packed_bytes,
                          const size_t* room_bytes, size_t* plain_bytes, size_t sections,
                          void* temp, size_t temp_bytes, void* const* plain, Options options,
                          Status* statuses, Stream stream);

}  // namespace tfswap::nvcomp

#endif  // TFSWAP_CC_GPU_NVCOMP_API_H_
