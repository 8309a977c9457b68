#ifndef TFSWAP_CC_CORE_MEMORY_COPY_H_
#define TFSWAP_CC_CORE_MEMORY_COPY_H_

#include <cstddef>
#include <cstdint>

namespace tfswap {

// memcpy for buffers that are not read again soon: non-temporal stores bypass the caches, so a copy
// neither evicts the kernels' working set nor reads the lines that it overwrites.
void CopyPastCache(void* destination, const void* source, size_t bytes);

// Return a 64-bit checksum, to detect corrupted buffers. Not cryptographic.
uint64_t Checksum(const void* data, size_t bytes);

// The same for large buffers, several times as fast. `portable`: without instructions of particular
// processors, with the same result. Any single flipped bit changes it. Unlike those of Checksum(),
// results are valid within one process only: they may differ between versions.
uint64_t BufferChecksum(const void* data, size_t bytes, bool portable = false);

// Return the bytes per second of CopyPastCache between two blocks of `bytes` bytes, median of
// `repeats`.
double MeasureCopySpeed(size_t bytes, int repeats);

}  // namespace tfswap

#endif  // TFSWAP_CC_CORE_MEMORY_COPY_H_
