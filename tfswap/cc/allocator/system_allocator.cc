#include "allocator/system_allocator.h"

#include <algorithm>

#include "allocator/page_blocks.h"
#include "tsl/platform/mem.h"

namespace tfswap {

namespace {

struct Header {
  size_t bytes;
  size_t padding;  // from the block's begin to the user's
};
constexpr size_t kLeastPadding = 64;
static_assert(sizeof(Header) <= kLeastPadding);

const Header* HeaderOf(const void* ptr) { return static_cast<const Header*>(ptr) - 1; }

}  // namespace

void* SystemAllocator::AllocateRaw(size_t alignment, size_t num_bytes) {
  const size_t padding = std::max(alignment, kLeastPadding);
  const size_t whole = num_bytes + padding;
  if (whole < num_bytes) return nullptr;
  char* block = static_cast<char*>(
      whole >= kPageBlockBytes
          ? AllocatePageBlock(whole)
          : tsl::port::AlignedMalloc(whole, static_cast<std::align_val_t>(padding)));
  if (block == nullptr) return nullptr;
  char* ptr = block + padding;
  *(reinterpret_cast<Header*>(ptr) - 1) = {num_bytes, padding};
  return ptr;
}

void SystemAllocator::DeallocateRaw(void* ptr) {
  if (ptr == nullptr) return;
  const Header header = *HeaderOf(ptr);
  char* block = static_cast<char*>(ptr) - header.padding;
  const size_t whole = header.bytes + header.padding;
  if (whole >= kPageBlockBytes) {
    FreePageBlock(block, whole);
  } else {
    tsl::port::AlignedFree(block);
  }
}

size_t SystemAllocator::RequestedSize(const void* ptr) const { return HeaderOf(ptr)->bytes; }

}  // namespace tfswap
