#ifndef TFSWAP_CC_CORE_MEMORY_COPY_H_
#define TFSWAP_CC_CORE_MEMORY_COPY_H_

#include <cstddef>
#include <cstdint>

namespace tfswap {

// memcpy for buffers that nobody reads again soon: the destination is written past the caches, so
// a copy neither evicts what the kernels work on nor reads the lines that it overwrites.
void CopyPastCache(void* destination, const void* source, size_t bytes);

// A 64-bit checksum of `bytes` bytes, to notice a buffer that came back changed. Not cryptographic.
uint64_t Checksum(const void* data, size_t bytes);

// The same for large buffers, several times as fast. `portable`: without what only some processors
// have, to the same result. Any single bit that changes changes it. For one process's lifetime:
// unlike those of Checksum(), results are not kept in files, and may differ between versions.
uint64_t BufferChecksum(const void* data, size_t bytes, bool portable = false);

// Bytes per second of CopyPastCache between two blocks of `bytes` bytes, median of `repeats`.
double MeasureCopySpeed(size_t bytes, int repeats);

}  // namespace tfswap

#endif  // TFSWAP_CC_CORE_MEMORY_COPY_H_
