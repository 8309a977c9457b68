#include "core/memory/page_blocks.h"

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <thread>

#include "core/util/thread_team.h"

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

void TouchPages(void* block, size_t bytes) {
  constexpr unsigned kMostThreads = 8;
  std::atomic<size_t> next{0};
  ThreadTeam::Shared().RunParallel(
      static_cast<int>(std::min(kMostThreads, std::thread::hardware_concurrency())), [&] {
        for (size_t part; (part = next.fetch_add(kHugePageBytes)) < bytes;) {
          const size_t end = std::min(part + kHugePageBytes, bytes);
          for (size_t at = part; at < end; at += kPageBytes) {
            static_cast<volatile char*>(block)[at] = 0;
          }
        }
      });
}

void PreferNode(void* block, size_t bytes, int node) {
  constexpr int kPreferred = 1, kNodes = 64;  // of numaif.h
  if (node < 0 || node >= kNodes) return;
  const uint64_t nodes = uint64_t{1} << node;
  // Advice only, like what follows from a failure.
  (void)syscall(SYS_mbind, block, bytes, kPreferred, &nodes, kNodes + 1, 0);
}

size_t ReleasePages(void* block, size_t bytes, size_t kept) {
  const size_t rounded = RoundUp(kept, kHugePageBytes);
  if (rounded >= bytes) return bytes;
  madvise(static_cast<char*>(block) + rounded, RoundUp(bytes, kPageBytes) - rounded, MADV_DONTNEED);
  return rounded;
}

}  // namespace tfswap
