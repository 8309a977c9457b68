#ifndef TFSWAP_CC_CUDA_CODEC_FORMAT_H_
#define TFSWAP_CC_CUDA_CODEC_FORMAT_H_

#include <cstddef>
#include <cstdint>

#ifdef __CUDACC__
#define TFSWAP_HOST_DEVICE __host__ __device__
#else
#define TFSWAP_HOST_DEVICE
#endif

// How a GPU's encoded tensor lies in far memory: known to the kernels, and to whoever starts them.
//
//   far block  | FarHeader | FarSection 0, 1, 2, ... | section 1 | section 0 | section 2 | ...
//              0           32                        SectionsBegin()         each at 32 bytes
//
// A tensor is cut into sections, which know nothing of one another. They are encoded at once, so
// they lie in the order in which they were done, and the table says where. Inside of a section the
// 32-bit or 16-bit words that are not zero ("values") are packed, in their order, and an index says
// where they were. Zero is what has no bit set: -0.0 is a value.
//
//   zvc  | a bitmap of 32 bits for each 32 words | values |
//   rle  | count, 16 bits | word at which each run begins, 16 bits each; the first run is of
//   values,
//          the next one of zeros, and so on, before the first one are zeros | values |
//   csr  | values | number of each one's word, 16 bits each |
//
//   lz4, ans  | what nvCOMP made of it |
//
// A section that would not shrink is stored as it is, and its table entry has the size that it had;
// one of zeros has no bytes at all. So an encoded tensor is never longer than MostFarBytes().
namespace tfswap::gpu_codec {

// Of the GPU's memory; so are a section's words numbered by 16 bits.
constexpr uint32_t kSectionBytes = 16384;
// Sections begin there: PCIe moves sectors of that size, and the table counts in it.
constexpr uint32_t kFarUnitBytes = 32;
// Sections as a whole begin at a line, so that the store of a warp fills whole ones.
constexpr uint32_t kFarLineBytes = 128;
constexpr uint32_t kFarMagic = 0x43574654;  // "TFWC"
// What is looked at, or left out, at once when zeros are counted.
constexpr uint32_t kSampleBytes = 4096;

constexpr int kZvc = 0, kRle = 1, kCsr = 2, kLz4 = 3, kAns = 4;

// Written last.
struct FarHeader {
  uint32_t magic;
  uint16_t codec;
  uint16_t word_bytes;
  uint64_t source_bytes;
  uint64_t far_bytes;   // all of it, with this and the table
  uint64_t zero_words;  // among those of the tensor
};
static_assert(sizeof(FarHeader) == 32, "the table begins behind it");

struct alignas(8) FarSection {
  uint32_t at;  // in units, from the beginning of the far block
  uint32_t bytes;
};

struct ZeroCount {
  uint64_t zero_words;
  uint64_t words;  // that were looked at
};

// What blocks of one launch share, on the GPU. All zero between launches; launches that may run at
// once have one each, of these.
constexpr int kTallies = 16;
struct Tally {
  unsigned long long units;  // NOLINT: CUDA's atomic functions have no other 64-bit type
  unsigned long long words;  // NOLINT
  unsigned int finished;
  unsigned int unused;
};

// nvCOMP packs sections on the GPU, some at once: a batch. It recommends these.
constexpr uint32_t kBatchSectionBytes = 65536;

// A batch's arrays on the GPU, an element for each of its sections, as nvCOMP takes them, and the
// GPU's memory for what is packed. Statuses are nvCOMP's, 0 for success.
struct Batch {
  unsigned char** from;
  size_t* from_bytes;
  unsigned char** to;
  size_t* to_bytes;    // what it became
  size_t* room_bytes;  // of `to`, when unpacking: what it must become
  int* statuses;
  unsigned char* packed;
  uint64_t packed_stride;  // a section's room there
};

// Something packed that is sound, for sections with nothing to unpack: a batch has no gaps.
struct Filler {
  unsigned char* packed;
  const size_t* packed_bytes;
  unsigned char* plain;
  size_t plain_bytes;
};

// What the host finds where a section could not be unpacked: kFault, and the status.
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

// From the beginning of the far block.
TFSWAP_HOST_DEVICE constexpr uint64_t SectionsBegin(uint64_t bytes,
                                                    uint32_t section_bytes = kSectionBytes) {
  return RoundUp<uint64_t>(
      sizeof(FarHeader) + SectionCount(bytes, section_bytes) * sizeof(FarSection), kFarLineBytes);
}

// The longest that a tensor of `bytes` can become, in sections of any size here.
TFSWAP_HOST_DEVICE constexpr uint64_t MostFarBytes(uint64_t bytes) {
  return SectionsBegin(bytes) + RoundUp<uint64_t>(bytes, kFarUnitBytes);
}

}  // namespace tfswap::gpu_codec

#endif  // TFSWAP_CC_CUDA_CODEC_FORMAT_H_
