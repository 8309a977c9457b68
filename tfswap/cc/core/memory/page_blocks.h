#ifndef TFSWAP_CC_CORE_MEMORY_PAGE_BLOCKS_H_
#define TFSWAP_CC_CORE_MEMORY_PAGE_BLOCKS_H_

#include <cstddef>

namespace tfswap {

// Blocks of at least this size are mapped and unmapped one by one. malloc does the same from 32 MiB
// on, but with pages of 4 KiB, so that page faults dominate the time of a copy into a new block.
// These blocks use huge pages if the kernel has any.
inline constexpr size_t kPageBlockBytes = size_t{32} << 20;

// Return a block aligned to 2 MiB; null if the system has no memory.
void* AllocatePageBlock(size_t bytes);
void FreePageBlock(void* block, size_t bytes);
// Touch each page, by several threads, so that it has memory.
void TouchPages(void* block, size_t bytes);
// Take the memory of a block from a NUMA node where possible, when it is touched; -1: no
// preference.
void PreferNode(void* block, size_t bytes, int node);
// Release the memory after the first `kept` bytes of a block of `bytes` bytes, in whole huge pages.
// Return the bytes that are kept. The block keeps its addresses.
size_t ReleasePages(void* block, size_t bytes, size_t kept);

}  // namespace tfswap

#endif  // TFSWAP_CC_CORE_MEMORY_PAGE_BLOCKS_H_
