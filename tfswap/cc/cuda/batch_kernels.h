#ifndef TFSWAP_CC_CUDA_BATCH_KERNELS_H_
#define TFSWAP_CC_CUDA_BATCH_KERNELS_H_

#include <cstdint>

#include "cuda/codec_format.h"
#include "cuda/kernel_parts.h"

// Kernels that run before and after nvCOMP, which encodes sections within GPU memory only: they set
// up its arrays and transfer the encoded sections.
//
//  out   lay | nvCOMP encodes | pack: store to the host, offsets by atomicAdd
//  in    unpack: load from the host | nvCOMP decodes | check
//
// One batch after the other on one stream. The far block has the format of the other codecs.
namespace tfswap::gpu_codec {

// Whole lines for whole units, then bytes: memory after the end must not be accessed.
inline __device__ void StoreToHost(unsigned char* to, const unsigned char* from, uint32_t bytes) {
  StoreLines(to, reinterpret_cast<const uint4*>(from), bytes / kUnitBytes);
  for (uint32_t i = bytes / kUnitBytes * kUnitBytes + threadIdx.x; i < bytes; i += blockDim.x) {
    to[i] = from[i];
  }
}

}  // namespace tfswap::gpu_codec

// Prepare the sections `first`, `first` + `every`, and so on; the first batch of a tensor also
// resets the tally if there is one.
extern "C" __global__ void __launch_bounds__(1024)
    tfswap_lay_batch(unsigned char* source, uint64_t bytes, uint32_t first, uint32_t every,
                     uint32_t count, tfswap::gpu_codec::Batch batch,
                     tfswap::gpu_codec::Tally* tally) {
  using namespace tfswap::gpu_codec;
  const uint32_t thread = blockIdx.x * blockDim.x + threadIdx.x;
  if (thread == 0 && first == 0 && tally != nullptr) tally->units = 0;
  for (uint32_t i = thread; i < count; i += gridDim.x * blockDim.x) {
    const uint32_t section = first + i * every;
    batch.from[i] = source + uint64_t{section} * kBatchSectionBytes;
    batch.from_bytes[i] = BytesOf(section, bytes, kBatchSectionBytes);
    batch.to[i] = batch.packed + i * batch.packed_stride;
    batch.to_bytes[i] = 0;
    batch.statuses[i] = kStatusUnset;
  }
}

// Store encoded sections to the far block; sections that did not shrink or failed are stored
// uncompressed.
extern "C" __global__ void __launch_bounds__(1024)
    tfswap_pack_batch(unsigned char* far_block, uint64_t bytes, uint32_t first, uint32_t count,
                      uint32_t codec, uint32_t word_bytes, tfswap::gpu_codec::Batch batch,
                      tfswap::gpu_codec::Tally* tally, uint64_t* far_bytes) {
  using namespace tfswap::gpu_codec;
  __shared__ uint32_t place;

  auto* table = reinterpret_cast<FarSection*>(far_block + sizeof(FarHeader));
  const uint64_t begin = SectionsBegin(bytes, kBatchSectionBytes);
  for (uint32_t i = blockIdx.x; i < count; i += gridDim.x) {
    const auto plain_bytes = static_cast<uint32_t>(batch.from_bytes[i]);
    const size_t packed_bytes = batch.to_bytes[i];
    const bool shrinks = batch.statuses[i] == 0 && packed_bytes > 0 && packed_bytes < plain_bytes;
    const uint32_t stored_bytes = shrinks ? static_cast<uint32_t>(packed_bytes) : plain_bytes;
    if (threadIdx.x == 0) {
      const auto units =
          atomicAdd(&tally->units, (stored_bytes + kFarUnitBytes - 1ull) / kFarUnitBytes);
      place = static_cast<uint32_t>(begin / kFarUnitBytes + units);
      table[first + i] = {place, stored_bytes};
    }
    __syncthreads();
    StoreToHost(far_block + uint64_t{place} * kFarUnitBytes, shrinks ? batch.to[i] : batch.from[i],
                stored_bytes);
    __syncthreads();
  }

  Tally found;
  if (first + count == SectionCount(bytes, kBatchSectionBytes) && IsLast(tally, 0, &found)) {
    auto* header = reinterpret_cast<FarHeader*>(far_block);
    const uint64_t all_bytes = begin + found.units * kFarUnitBytes;
    header->magic = kFarMagic;
    header->codec = static_cast<uint16_t>(codec);
    header->word_bytes = static_cast<uint16_t>(word_bytes);
    header->source_bytes = bytes;
    header->far_bytes = all_bytes;
    header->zero_words = 0;
    if (far_bytes != nullptr) *far_bytes = all_bytes;
  }
}

// Load encoded sections to the GPU, uncompressed ones directly to the target.
extern "C" __global__ void __launch_bounds__(1024)
    tfswap_unpack_batch(unsigned char* far_block, uint64_t bytes, uint32_t first, uint32_t count,
                        unsigned char* target, tfswap::gpu_codec::Batch batch,
                        tfswap::gpu_codec::Filler filler, uint64_t* fault) {
  using namespace tfswap::gpu_codec;
  __shared__ FarSection entry;

  const auto* table = reinterpret_cast<const FarSection*>(far_block + sizeof(FarHeader));
  const uint64_t begin = SectionsBegin(bytes, kBatchSectionBytes), end = MaxFarBytes(bytes);
  for (uint32_t i = blockIdx.x; i < count; i += gridDim.x) {
    const uint32_t section = first + i;
    if (threadIdx.x == 0) entry = table[section];
    __syncthreads();
    unsigned char* const to = target + uint64_t{section} * kBatchSectionBytes;
    const uint32_t plain_bytes = BytesOf(section, bytes, kBatchSectionBytes);
    const uint64_t at = uint64_t{entry.at} * kFarUnitBytes;
    const bool possible = entry.bytes > 0 && entry.bytes <= plain_bytes && at >= begin &&
                          at + RoundUp<uint64_t>(entry.bytes, kUnitBytes) <= end;
    const bool packed = possible && entry.bytes < plain_bytes;
    unsigned char* const room = batch.packed + i * batch.packed_stride;
    if (possible) {
      Store(packed ? room : to, reinterpret_cast<const uint4*>(far_block + at), entry.bytes);
    } else {
      // Far memory is corrupted: fill with NaN, so that the error is noticed.
      Fill(to, 0xffffffffu, plain_bytes);
    }
    if (threadIdx.x == 0) {
      if (!possible) *fault = kFault | kStatusDamaged;
      batch.from[i] = packed ? room : filler.packed;
      batch.from_bytes[i] = packed ? entry.bytes : *filler.packed_bytes;
      batch.to[i] = packed ? to : filler.plain;
      batch.room_bytes[i] = packed ? plain_bytes : filler.plain_bytes;
      batch.to_bytes[i] = 0;
      batch.statuses[i] = kStatusUnset;
    }
    __syncthreads();
  }
}

// Fill sections that failed to decode with NaN and notify the host.
extern "C" __global__ void __launch_bounds__(1024)
    tfswap_check_batch(uint32_t count, tfswap::gpu_codec::Batch batch, uint64_t* fault) {
  using namespace tfswap::gpu_codec;
  for (uint32_t i = blockIdx.x; i < count; i += gridDim.x) {
    if (batch.statuses[i] == 0 && batch.to_bytes[i] == batch.room_bytes[i]) continue;
    Fill(batch.to[i], 0xffffffffu, static_cast<uint32_t>(batch.room_bytes[i]));
    const int status = batch.statuses[i] == 0 ? kStatusDamaged : batch.statuses[i];
    if (threadIdx.x == 0) *fault = kFault | static_cast<uint32_t>(status);
  }
}

// Compute the far memory that the encoded sections would need, and their plain size, into two
// numbers of the host. One block.
extern "C" __global__ void __launch_bounds__(1024)
    tfswap_weigh_batch(uint32_t count, tfswap::gpu_codec::Batch batch, uint64_t* weights) {
  using namespace tfswap::gpu_codec;
  if (threadIdx.x != 0) return;
  uint64_t kept_bytes = 0, plain_bytes = 0;
  for (uint32_t i = 0; i < count; ++i) {
    const uint64_t own_bytes = batch.from_bytes[i];
    const bool shrinks =
        batch.statuses[i] == 0 && batch.to_bytes[i] > 0 && batch.to_bytes[i] < own_bytes;
    kept_bytes += RoundUp<uint64_t>(shrinks ? batch.to_bytes[i] : own_bytes, kFarUnitBytes);
    plain_bytes += own_bytes;
  }
  weights[0] = kept_bytes;
  weights[1] = plain_bytes;
}

#endif  // TFSWAP_CC_CUDA_BATCH_KERNELS_H_
