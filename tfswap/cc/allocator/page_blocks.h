#ifndef TFSWAP_CC_ALLOCATOR_PAGE_BLOCKS_H_
#define TFSWAP_CC_ALLOCATOR_PAGE_BLOCKS_H_

#include <cstddef>

namespace tfswap {

// Blocks from here on come straight from the system and go straight back. malloc does the same from
// 32 MiB on, in pages of 4 KiB: then most of the time of a copy into a fresh block is spent on page
// faults. These are in huge pages where the kernel has any.
inline constexpr size_t kPageBlockBytes = size_t{32} << 20;

// A block aligned to 2 MiB; null if the system has none.
void* AllocatePageBlock(size_t bytes);
void FreePageBlock(void* block, size_t bytes);
// Gives back the memory behind the first `kept` bytes of a block of `bytes` bytes, huge pages as a
// whole; answers how many it keeps. The addresses stay the block's.
size_t ReleasePages(void* block, size_t bytes, size_t kept);

}  // namespace tfswap

#endif  // TFSWAP_CC_ALLOCATOR_PAGE_BLOCKS_H_
