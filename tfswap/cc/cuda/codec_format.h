#ifndef TFSWAP_CC_CUDA_CODEC_FORMAT_H_
#define TFSWAP_CC_CUDA_CODEC_FORMAT_H_

#include <cstddef>
#include <cstdint>

#ifdef __CUDACC__
#define TFSWAP_HOST_DEVICE __host__ __device__
#else
#define TFSWAP_HOST_DEVICE
#endif

// The format of a GPU's encoded tensors in far memory, shared by the kernels and the host.
//
//  far block  | FarHeader | FarSection 0, 1, 2, ... | section 1 | section 0 | section 2 | ...
//             0           32                        SectionsBegin()         each at 32 bytes
//
// A tensor is split into independent sections. They are encoded concurrently and stored in the
// order of completion; the table has their offsets. Within a section the 32-bit or 16-bit words
// that are not zero ("values") are packed in order, and an index holds their positions. A word is
// zero if no bit is set: -0.0 is a value.
//
//  zvc  | a bitmap of 32 bits for each 32 words | values |
//  rle  | count, 16 bits | word at which each run starts, 16 bits each; runs of values and of zeros
//         alternate, starting with values; the words before the first run are zeros | values |
//  csr  | values | position of each value, 16 bits each |
//
//  lz4, ans  | as encoded by nvCOMP |
//
// A section that would not shrink is stored uncompressed, with its plain size in the table; a
// section of zeros has no bytes. So an encoded tensor never exceeds MaxFarBytes().
namespace tfswap::gpu_codec {

// Bytes of a section in GPU memory; 16 bits suffice to number its words.
constexpr uint32_t kSectionBytes = 16384;
// Alignment of sections: the sector size of PCIe, and the unit of the table.
constexpr uint32_t kFarUnitBytes = 32;
// Alignment of the area of sections, so that the stores of a warp fill whole lines.
constexpr uint32_t kFarLineBytes = 128;
constexpr uint32_t kFarMagic = 0x43574654;  // "TFWC"
// The granularity at which zeros are sampled.
constexpr uint32_t kSampleBytes = 4096;

constexpr int kZvc = 0, kRle = 1, kCsr = 2, kLz4 = 3, kAns = 4;

// Written last.
struct FarHeader {
  uint32_t magic;
  uint16_t codec;
  uint16_t word_bytes;
  uint64_t source_bytes;
  uint64_t far_bytes;   // including header and table
  uint64_t zero_words;  // of the tensor
};
static_assert(sizeof(FarHeader) == 32, "the table follows the header");

struct alignas(8) FarSection {
  uint32_t at;  // in units, from the start of the far block
  uint32_t bytes;
};

struct ZeroCount {
  uint64_t zero_words;
  uint64_t words;  // sampled words
};

// Counters shared by the blocks of one launch, in GPU memory. All zero between launches; concurrent
// launches use different ones.
constexpr int kTallies = 16;
struct Tally {
  unsigned long long units;  // NOLINT: CUDA's atomic functions have no other 64-bit type
  unsigned long long words;  // NOLINT
  unsigned int finished;
  unsigned int unused;
};

// nvCOMP encodes batches of sections of this size, which it recommends.
constexpr uint32_t kBatchSectionBytes = 65536;

// The arrays of a batch on the GPU, with one element per section as nvCOMP expects them, and the
// memory for encoded sections. Statuses are nvCOMP's, 0 for success.
struct Batch {
  unsigned char** from;
  size_t* from_bytes;
  unsigned char** to;
  size_t* to_bytes;    // actual size
  size_t* room_bytes;  // expected size when decoding
  int* statuses;
  unsigned char* packed;
  uint64_t packed_stride;  // bytes per section
};

// A valid encoded dummy for sections without encoded data: a batch has no gaps.
struct Filler {
  unsigned char* packed;
  const size_t* packed_bytes;
  unsigned char* plain;
  size_t plain_bytes;
};

// Written to host memory if a section could not be decoded: kFault and the status.
constexpr uint64_t kFault = uint64_t{1} << 32;
constexpr int kStatusUnset = -1;
constexpr int kStatusDamaged = 12;  // nvCOMP's "cannot decompress"

template <typename T>
TFSWAP_HOST_DEVICE constexpr T RoundUp(T value, T multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

TFSWAP_HOST_DEVICE constexpr uint64_t SectionCount(uint64_t bytes,
                                                   uint32_t section_bytes = kSectionBytes) {
  return (bytes + section_bytes - 1) / section_bytes;
}

// Offset of the sections in the far block.
TFSWAP_HOST_DEVICE constexpr uint64_t SectionsBegin(uint64_t bytes,
                                                    uint32_t section_bytes = kSectionBytes) {
  return RoundUp<uint64_t>(
      sizeof(FarHeader) + SectionCount(bytes, section_bytes) * sizeof(FarSection), kFarLineBytes);
}

// The maximum size of an encoded tensor, for any section size.
TFSWAP_HOST_DEVICE constexpr uint64_t MaxFarBytes(uint64_t bytes) {
  return SectionsBegin(bytes) + RoundUp<uint64_t>(bytes, kFarUnitBytes);
}

}  // namespace tfswap::gpu_codec

#endif  // TFSWAP_CC_CUDA_CODEC_FORMAT_H_
