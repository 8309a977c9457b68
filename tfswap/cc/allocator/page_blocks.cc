#include "allocator/page_blocks.h"

#include <sys/mman.h>

#include <cstdint>

namespace tfswap {

namespace {

constexpr size_t kPageBytes = 4096;
constexpr size_t kHugePageBytes = size_t{2} << 20;

size_t RoundUp(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

}  // namespace

void* AllocatePageBlock(size_t bytes) {
  const size_t rounded = RoundUp(bytes, kPageBytes);
  // Reserve enough to align the block to a huge page, then unmap the rest.
  const size_t reserved = rounded + kHugePageBytes;
  void* mapped =
      mmap(nullptr, reserved, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) return nullptr;
  char* begin = static_cast<char*>(mapped);
  char* block =
      reinterpret_cast<char*>(RoundUp(reinterpret_cast<uintptr_t>(mapped), kHugePageBytes));
  if (block > begin) munmap(begin, block - begin);
  char* end = block + rounded;
  if (begin + reserved > end) munmap(end, begin + reserved - end);
  madvise(block, rounded, MADV_HUGEPAGE);  // advice only
  return block;
}

void FreePageBlock(void* block, size_t bytes) { munmap(block, RoundUp(bytes, kPageBytes)); }

size_t ReleasePages(void* block, size_t bytes, size_t kept) {
  const size_t rounded = RoundUp(kept, kHugePageBytes);
  if (rounded >= bytes) return bytes;
  madvise(static_cast<char*>(block) + rounded, RoundUp(bytes, kPageBytes) - rounded, MADV_DONTNEED);
  return rounded;
}

}  // namespace tfswap
