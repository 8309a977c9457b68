// Encodes tensors during their transfer from GPU memory to pinned host memory, and decodes them on
// the way back, so that only encoded data cross the link: thread blocks access sections in host
// memory directly (format: cuda/codec_format.h).
//
//  encode     load section -> shared | ballot, scan | pack in shared | store to the host
//                                                \_ offset: atomicAdd on a cursor in GPU memory
//  decode     load packed section n + 1 from the host | expand section n -> GPU memory
//
// A launch may have any number of blocks of up to 1024 threads in whole warps: a few blocks
// saturate the link and leave the rest of the GPU to compute.
//
// Use only features that tests/gpu/simt emulates: the tests run this file on the CPU.

#include <cuda_pipeline.h>

#include <cstdint>

#include "cuda/batch_kernels.h"
#include "cuda/codec_format.h"
#include "cuda/kernel_parts.h"

namespace tfswap::gpu_codec {
namespace {

constexpr uint32_t kWarp = 32;
constexpr uint32_t kMaxWarps = 32;
constexpr uint32_t kAllLanes = 0xffffffffu;
constexpr uint32_t kBatch = 4;  // concurrent loads of a thread
constexpr uint32_t kSectionUnits = kSectionBytes / kUnitBytes;
// Marks an invalid table entry.
constexpr uint32_t kDamaged = 0xffffffffu;

__device__ uint32_t Lane() { return threadIdx.x % kWarp; }
__device__ uint32_t Warp() { return threadIdx.x / kWarp; }
__device__ uint32_t Warps() { return blockDim.x / kWarp; }
__device__ uint32_t LanesBelow() { return (1u << Lane()) - 1; }

// An exclusive prefix sum, and the total of all warps.
struct Scanned {
  uint32_t before;
  uint32_t all;
};

// Scan a number of each warp. `totals` has space for all warps and must not be reused before the
// next barrier. Contains a block barrier.
__device__ Scanned ScanWarps(uint32_t own, uint32_t* totals) {
  if (Lane() == 0) totals[Warp()] = own;
  __syncthreads();
  uint32_t sum = Lane() < Warps() ? totals[Lane()] : 0;
  for (uint32_t distance = 1; distance < kWarp; distance *= 2) {
    const uint32_t other = __shfl_up_sync(kAllLanes, sum, distance);
    if (Lane() >= distance) sum += other;
  }
  const uint32_t through = __shfl_sync(kAllLanes, sum, Warp());
  return {through - own, __shfl_sync(kAllLanes, sum, kWarp - 1)};
}

__device__ uint32_t SumOfWarp(uint32_t own) {
  for (uint32_t distance = kWarp / 2; distance > 0; distance /= 2) {
    own += __shfl_xor_sync(kAllLanes, own, distance);
  }
  return own;
}

// Groups of 32 words; each warp processes consecutive ones.
struct Groups {
  uint32_t first;
  uint32_t end;
  __device__ explicit Groups(uint32_t count) {
    const uint32_t each = (count + Warps() - 1) / Warps();
    first = min(Warp() * each, count);
    end = min(first + each, count);
  }
};

__device__ uint32_t GroupsOf(uint32_t words) { return (words + kWarp - 1) / kWarp; }

// Offsets of the parts of an encoded section.
struct Packed {
  uint32_t values_at;
  uint32_t index_at;
  uint32_t bytes;
};

template <int kCodec, typename Word>
__device__ Packed PackedOf(uint32_t words, uint32_t values, uint32_t edges) {
  const uint32_t value_bytes = values * sizeof(Word);
  if (values == 0) return {0, 0, 0};
  if (kCodec == kZvc) {
    const uint32_t bitmap_bytes = GroupsOf(words) * sizeof(uint32_t);
    return {bitmap_bytes, 0, bitmap_bytes + value_bytes};
  }
  if (kCodec == kRle) {
    const uint32_t edge_bytes = RoundUp<uint32_t>((1 + edges) * sizeof(uint16_t), sizeof(Word));
    return {edge_bytes, 0, edge_bytes + value_bytes};
  }
  return {0, value_bytes, value_bytes + values * static_cast<uint32_t>(sizeof(uint16_t))};
}

// Bits of words at which a run starts: the bit differs from the previous one; `before` is the last
// one of the previous group.
__device__ uint32_t EdgesOf(uint32_t mask, uint32_t before) { return mask ^ (mask << 1 | before); }

// The inverse: each bit is the parity of the edges up to it.
__device__ uint32_t MaskOf(uint32_t edges, uint32_t before) {
  for (uint32_t distance = 1; distance < kWarp; distance *= 2) edges ^= edges << distance;
  return before != 0 ? ~edges : edges;
}

// The calling thread's part of an asynchronous copy into shared memory.
__device__ void BeginLoad(uint4* to, const unsigned char* from, uint32_t bytes) {
  const uint32_t units = bytes / kUnitBytes;
  for (uint32_t i = threadIdx.x; i < units; i += blockDim.x) {
    __pipeline_memcpy_async(&to[i], from + uint64_t{i} * kUnitBytes, kUnitBytes);
  }
  // The end of a tensor: memory after it must not be read.
  auto* to_bytes = reinterpret_cast<unsigned char*>(to);
  for (uint32_t i = units * kUnitBytes + threadIdx.x; i < bytes; i += blockDim.x) {
    to_bytes[i] = from[i];
  }
}

template <int kCodec, typename Word>
__device__ void Encode(const unsigned char* source, uint64_t bytes, unsigned char* far_block,
                       Tally* tally, uint64_t* far_bytes) {
  constexpr uint32_t kGroups = kSectionBytes / sizeof(Word) / kWarp;
  __shared__ uint4 source_units[kSectionUnits];
  __shared__ uint4 packed_units[kSectionUnits];
  __shared__ uint32_t masks[kGroups];
  __shared__ uint32_t totals[kMaxWarps];
  __shared__ uint32_t place;

  const auto* words = reinterpret_cast<const Word*>(source_units);
  auto* packed = reinterpret_cast<unsigned char*>(packed_units);
  auto* table = reinterpret_cast<FarSection*>(far_block + sizeof(FarHeader));
  const auto sections = static_cast<uint32_t>(SectionCount(bytes));
  const auto begin_units = static_cast<uint32_t>(SectionsBegin(bytes) / kFarUnitBytes);
  unsigned long long zeros = 0;

  const auto load = [&](uint32_t section) {
    if (section < sections) {
      const uint32_t section_bytes = BytesOf(section, bytes);
      BeginLoad(source_units, source + uint64_t{section} * kSectionBytes, section_bytes);
      // Pad with zeros to a whole group.
      const uint32_t end = RoundUp<uint32_t>(section_bytes, kWarp * sizeof(Word));
      for (uint32_t i = section_bytes + threadIdx.x; i < end; i += blockDim.x) {
        reinterpret_cast<unsigned char*>(source_units)[i] = 0;
      }
    }
    __pipeline_commit();
  };

  load(blockIdx.x);
  for (uint32_t section = blockIdx.x; section < sections; section += gridDim.x) {
    __pipeline_wait_prior(0);
    __syncthreads();

    const uint32_t section_bytes = BytesOf(section, bytes);
    const uint32_t section_words = section_bytes / sizeof(Word);
    const Groups groups(GroupsOf(section_words));
    uint32_t own_values = 0, own_edges = 0;
    const uint32_t before_first =
        kCodec == kRle && groups.first > 0 && words[groups.first * kWarp - 1] != 0;
    uint32_t before = before_first;
    for (uint32_t batch = groups.first; batch < groups.end; batch += kBatch) {
      Word held[kBatch];  // lets loads overlap with ballots
#pragma unroll
      for (uint32_t i = 0; i < kBatch; ++i) {
        held[i] = batch + i < groups.end ? words[(batch + i) * kWarp + Lane()] : Word{0};
      }
#pragma unroll
      for (uint32_t i = 0; i < kBatch; ++i) {
        if (batch + i >= groups.end) break;
        const uint32_t mask = __ballot_sync(kAllLanes, held[i] != 0);
        if (Lane() == 0) masks[batch + i] = mask;
        own_values += __popc(mask);
        if (kCodec == kRle) {
          own_edges += __popc(EdgesOf(mask, before));
          before = mask >> (kWarp - 1);
        }
      }
    }
    const Scanned scanned = ScanWarps(own_edges << 16 | own_values, totals);
    const uint32_t values = scanned.all & 0xffff, edges = scanned.all >> 16;
    const Packed parts = PackedOf<kCodec, Word>(section_words, values, edges);
    const bool raw = parts.bytes >= section_bytes || section_bytes % sizeof(Word) != 0;
    const uint32_t stored_bytes = raw ? section_bytes : parts.bytes;
    uint32_t own_place = 0;
    if (threadIdx.x == 0) {  // completes while the block packs
      own_place = static_cast<uint32_t>(
          atomicAdd(&tally->units, (stored_bytes + kFarUnitBytes - 1ull) / kFarUnitBytes));
      zeros += section_words - values;
    }
    if (!raw && values > 0) {
      auto* to_values = reinterpret_cast<Word*>(packed + parts.values_at);
      auto* to_edges = reinterpret_cast<uint16_t*>(packed) + 1;
      auto* to_numbers = reinterpret_cast<uint16_t*>(packed + parts.index_at);
      uint32_t value = scanned.before & 0xffff, edge = scanned.before >> 16;
      before = before_first;
#pragma unroll 4
      for (uint32_t group = groups.first; group < groups.end; ++group) {
        const uint32_t mask = masks[group];
        const uint32_t number = group * kWarp + Lane();
        if (mask >> Lane() & 1) {
          const uint32_t rank = value + __popc(mask & LanesBelow());
          to_values[rank] = words[number];
          if (kCodec == kCsr) to_numbers[rank] = static_cast<uint16_t>(number);
        }
        value += __popc(mask);
        if (kCodec == kZvc && Lane() == 0) reinterpret_cast<uint32_t*>(packed)[group] = mask;
        if (kCodec == kRle) {
          const uint32_t begins = EdgesOf(mask, before);
          if (begins >> Lane() & 1) {
            to_edges[edge + __popc(begins & LanesBelow())] = static_cast<uint16_t>(number);
          }
          edge += __popc(begins);
          before = mask >> (kWarp - 1);
        }
      }
      if (kCodec == kRle && threadIdx.x == 0) {
        *reinterpret_cast<uint16_t*>(packed) = static_cast<uint16_t>(edges);
      }
    }
    if (threadIdx.x == 0) {
      place = begin_units + own_place;
      table[section] = {place, stored_bytes};
    }
    __syncthreads();

    if (!raw) load(section + gridDim.x);  // overlaps with the store
    StoreLines(far_block + uint64_t{place} * kFarUnitBytes, raw ? source_units : packed_units,
               (stored_bytes + kUnitBytes - 1) / kUnitBytes);
    if (raw) {
      __syncthreads();
      load(section + gridDim.x);
    }
  }

  Tally found;
  if (IsLast(tally, zeros, &found)) {
    auto* header = reinterpret_cast<FarHeader*>(far_block);
    header->magic = kFarMagic;
    header->codec = kCodec;
    header->word_bytes = sizeof(Word);
    header->source_bytes = bytes;
    header->far_bytes = SectionsBegin(bytes) + found.units * kFarUnitBytes;
    header->zero_words = found.words;
    if (far_bytes != nullptr) *far_bytes = SectionsBegin(bytes) + found.units * kFarUnitBytes;
  }
}

// Compute the bitmaps of an rle section; return false if the section is malformed.
__device__ bool MasksOfEdges(const unsigned char* packed, uint32_t bytes, uint32_t groups,
                             uint32_t* edges, uint32_t* masks) {
  *edges = *reinterpret_cast<const uint16_t*>(packed);
  if ((1 + *edges) * sizeof(uint16_t) > bytes) return false;
  const auto* numbers = reinterpret_cast<const uint16_t*>(packed) + 1;
  for (uint32_t group = threadIdx.x; group < groups; group += blockDim.x) {
    const uint32_t first = group * kWarp;
    uint32_t low = 0, high = *edges;  // the first edge in or after the group
    while (low < high) {
      const uint32_t middle = (low + high) / 2;
      if (numbers[middle] < first) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    uint32_t begins = 0;
    for (uint32_t edge = low; edge < *edges && numbers[edge] < first + kWarp; ++edge) {
      begins |= 1u << (numbers[edge] % kWarp);
    }
    masks[group] = MaskOf(begins, low % 2);
  }
  return true;
}

// Expand zvc and rle from bitmaps; return false if the number of values does not match.
template <int kCodec, typename Word>
__device__ bool Expand(Word* target, uint32_t words, const unsigned char* packed, uint32_t bytes,
                       const uint32_t* masks, uint32_t edges, uint32_t* totals) {
  const Groups groups(GroupsOf(words));
  uint32_t own_values = 0;
  for (uint32_t group = groups.first + Lane(); group < groups.end; group += kWarp) {
    own_values += __popc(masks[group]);
  }
  const Scanned scanned = ScanWarps(SumOfWarp(own_values), totals);
  const Packed parts = PackedOf<kCodec, Word>(words, scanned.all, edges);
  if (parts.bytes != bytes) return false;
  const auto* values = reinterpret_cast<const Word*>(packed + parts.values_at);
  uint32_t value = scanned.before;
#pragma unroll 4
  for (uint32_t group = groups.first; group < groups.end; ++group) {
    const uint32_t mask = masks[group];
    const uint32_t number = group * kWarp + Lane();
    Word word = 0;
    if (mask >> Lane() & 1) word = values[value + __popc(mask & LanesBelow())];
    if (number < words) target[number] = word;
    value += __popc(mask);
  }
  return true;
}

template <typename Word>
__device__ bool Scatter(Word* target, uint32_t words, const unsigned char* packed, uint32_t bytes) {
  const uint32_t values = bytes / (sizeof(Word) + sizeof(uint16_t));
  if (values * (sizeof(Word) + sizeof(uint16_t)) != bytes) return false;
  const auto* numbers = reinterpret_cast<const uint16_t*>(packed + values * sizeof(Word));
  Fill(reinterpret_cast<unsigned char*>(target), 0, words * sizeof(Word));
  __syncthreads();
  for (uint32_t value = threadIdx.x; value < values; value += blockDim.x) {
    const uint32_t number = numbers[value];
    if (number < words) target[number] = reinterpret_cast<const Word*>(packed)[value];
  }
  return true;
}

template <int kCodec, typename Word>
__device__ void Decode(const unsigned char* far_block, uint64_t bytes, unsigned char* target) {
  constexpr uint32_t kGroups = kSectionBytes / sizeof(Word) / kWarp;
  constexpr uint32_t kEntries = 3;
  __shared__ uint4 packed_units[2][kSectionUnits];
  __shared__ FarSection entries[kEntries];
  __shared__ uint32_t masks[kCodec == kRle ? kGroups : 1];
  __shared__ uint32_t totals[kMaxWarps];

  const auto* table = reinterpret_cast<const FarSection*>(far_block + sizeof(FarHeader));
  const auto sections = static_cast<uint32_t>(SectionCount(bytes));
  const uint64_t begin = SectionsBegin(bytes), end = MaxFarBytes(bytes);

  const auto load_entry = [&](uint64_t section, uint32_t turn) {
    if (section < sections && threadIdx.x == 0) {
      __pipeline_memcpy_async(&entries[turn % kEntries], &table[section], sizeof(FarSection));
    }
  };
  // The bytes of an entry; nothing is read for an invalid entry.
  const auto bytes_of = [&](uint32_t section, uint32_t turn) {
    const FarSection entry = entries[turn % kEntries];
    const uint64_t at = uint64_t{entry.at} * kFarUnitBytes;
    const bool possible = entry.bytes <= BytesOf(section, bytes) && at >= begin &&
                          at + RoundUp<uint64_t>(entry.bytes, kUnitBytes) <= end;
    return possible ? entry.bytes : kDamaged;
  };
  const auto load = [&](uint64_t section, uint32_t turn) {
    if (section < sections) {
      const uint32_t packed_bytes = bytes_of(static_cast<uint32_t>(section), turn);
      if (packed_bytes != kDamaged) {
        const uint64_t at = uint64_t{entries[turn % kEntries].at} * kFarUnitBytes;
        BeginLoad(packed_units[turn % 2], far_block + at,
                  RoundUp<uint32_t>(packed_bytes, kUnitBytes));
      }
    }
    __pipeline_commit();
  };

  // Each block processes its sections in a software pipeline: data are loaded one iteration ahead,
  // table entries two.
  load_entry(blockIdx.x, 0);
  load_entry(uint64_t{blockIdx.x} + gridDim.x, 1);
  __pipeline_commit();
  __pipeline_wait_prior(0);
  __syncthreads();
  load(blockIdx.x, 0);
  uint32_t turn = 0;
  for (uint64_t section = blockIdx.x; section < sections; section += gridDim.x, ++turn) {
    __pipeline_wait_prior(0);
    __syncthreads();
    load_entry(section + 2 * gridDim.x, turn + 2);
    load(section + gridDim.x, turn + 1);

    const auto* packed = reinterpret_cast<const unsigned char*>(packed_units[turn % 2]);
    unsigned char* to = target + section * kSectionBytes;
    const uint32_t section_bytes = BytesOf(static_cast<uint32_t>(section), bytes);
    const uint32_t words = section_bytes / sizeof(Word);
    const uint32_t packed_bytes = bytes_of(static_cast<uint32_t>(section), turn);
    bool sound = packed_bytes != kDamaged;
    if (packed_bytes == section_bytes) {
      Store(to, packed_units[turn % 2], section_bytes);
    } else if (packed_bytes == 0) {
      Fill(to, 0, section_bytes);
    } else if (sound && kCodec == kCsr) {
      sound = Scatter(reinterpret_cast<Word*>(to), words, packed, packed_bytes);
    } else if (sound && kCodec == kRle) {
      uint32_t edges;
      sound = MasksOfEdges(packed, packed_bytes, GroupsOf(words), &edges, masks);
      __syncthreads();
      sound = sound && Expand<kCodec>(reinterpret_cast<Word*>(to), words, packed, packed_bytes,
                                      masks, edges, totals);
    } else if (sound) {
      sound = Expand<kCodec>(reinterpret_cast<Word*>(to), words, packed, packed_bytes,
                             reinterpret_cast<const uint32_t*>(packed), 0, totals);
    }
    // Far memory is corrupted: fill with NaN, so that the error is noticed.
    if (!sound) Fill(to, 0xffffffffu, section_bytes);
  }
}

template <typename Word>
__device__ uint32_t ZerosOf(uint32_t four_bytes) {
  if (sizeof(Word) == sizeof(uint32_t)) return four_bytes == 0;
  return ((four_bytes & 0xffff) == 0) + (four_bytes >> 16 == 0);
}

// Count zeros in every `every`-th sample; the warps take samples in turn.
template <typename Word>
__device__ void CountZeros(const unsigned char* source, uint64_t bytes, uint32_t every,
                           ZeroCount* count, Tally* tally) {
  __shared__ uint32_t totals[kMaxWarps];
  const uint64_t whole = bytes / sizeof(Word) * sizeof(Word);
  const uint64_t samples = (whole + kSampleBytes - 1) / kSampleBytes;
  const uint64_t step = uint64_t{every} * gridDim.x * Warps();
  uint32_t zeros = 0;
  unsigned long long words = 0;
  for (uint64_t sample = uint64_t{every} * (blockIdx.x * Warps() + Warp()); sample < samples;
       sample += step) {
    const unsigned char* from = source + sample * kSampleBytes;
    const uint64_t left = whole - sample * kSampleBytes;
    const uint32_t sample_bytes = left < kSampleBytes ? static_cast<uint32_t>(left) : kSampleBytes;
    const uint32_t units = sample_bytes / kUnitBytes;
#pragma unroll 4
    for (uint32_t i = Lane(); i < units; i += kWarp) {
      const uint4 unit = reinterpret_cast<const uint4*>(from)[i];
      zeros += ZerosOf<Word>(unit.x) + ZerosOf<Word>(unit.y) + ZerosOf<Word>(unit.z) +
               ZerosOf<Word>(unit.w);
    }
    for (uint32_t i = units * kUnitBytes / sizeof(Word) + Lane(); i < sample_bytes / sizeof(Word);
         i += kWarp) {
      zeros += reinterpret_cast<const Word*>(from)[i] == 0;
    }
    words += sample_bytes / sizeof(Word);
  }
  // The sums of a block stay below 2^32, which is 8 GiB of zeros.
  const Scanned zeros_of_block = ScanWarps(SumOfWarp(zeros), totals);
  if (Lane() == 0) atomicAdd(&tally->units, words);
  __syncthreads();
  Tally found;
  if (IsLast(tally, zeros_of_block.all, &found)) *count = {found.words, found.units};
}

}  // namespace
}  // namespace tfswap::gpu_codec

extern "C" {
__device__ tfswap::gpu_codec::Tally tfswap_codec_tallies[tfswap::gpu_codec::kTallies];
}

#define TFSWAP_CODEC_KERNELS(name, codec, bits)                                                    \
  extern "C" __global__ void __launch_bounds__(1024) tfswap_encode_##name##_##bits(                \
      const unsigned char* source, uint64_t bytes, unsigned char* far_block,                       \
      tfswap::gpu_codec::Tally* tally, uint64_t* far_bytes) {                                      \
    tfswap::gpu_codec::Encode<tfswap::gpu_codec::codec, uint##bits##_t>(source, bytes, far_block,  \
                                                                        tally, far_bytes);         \
  }                                                                                                \
  extern "C" __global__ void __launch_bounds__(1024) tfswap_decode_##name##_##bits(                \
      const unsigned char* far_block, uint64_t bytes, unsigned char* target) {                     \
    tfswap::gpu_codec::Decode<tfswap::gpu_codec::codec, uint##bits##_t>(far_block, bytes, target); \
  }

#define TFSWAP_COUNT_KERNEL(bits)                                                      \
  extern "C" __global__ void __launch_bounds__(1024) tfswap_count_zeros_##bits(        \
      const unsigned char* source, uint64_t bytes, uint32_t every,                     \
      tfswap::gpu_codec::ZeroCount* count, tfswap::gpu_codec::Tally* tally) {          \
    tfswap::gpu_codec::CountZeros<uint##bits##_t>(source, bytes, every, count, tally); \
  }

TFSWAP_CODEC_KERNELS(zvc, kZvc, 32)
TFSWAP_CODEC_KERNELS(zvc, kZvc, 16)
TFSWAP_CODEC_KERNELS(rle, kRle, 32)
TFSWAP_CODEC_KERNELS(rle, kRle, 16)
TFSWAP_CODEC_KERNELS(csr, kCsr, 32)
TFSWAP_CODEC_KERNELS(csr, kCsr, 16)
TFSWAP_COUNT_KERNEL(32)
TFSWAP_COUNT_KERNEL(16)
