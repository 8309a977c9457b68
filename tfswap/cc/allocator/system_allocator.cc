#include "allocator/system_allocator.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "allocator/kernel_scope.h"
#include "core/memory/page_blocks.h"
#include "core/util/faults.h"

namespace tfswap {

namespace {

struct Header {
  size_t bytes;
  size_t padding;  // from the begin of the block to the begin of the user's bytes
  size_t held;     // the bytes that are charged and not released
};
constexpr size_t kMinPadding = 64;
static_assert(sizeof(Header) <= kMinPadding);

Header* HeaderOf(void* ptr) { return static_cast<Header*>(ptr) - 1; }
const Header* HeaderOf(const void* ptr) { return static_cast<const Header*>(ptr) - 1; }

}  // namespace

void* SystemAllocator::AllocateRaw(size_t alignment, size_t num_bytes) {
  if (Faults::Strikes(Fault::kAllocationFails)) return nullptr;
  const size_t padding = std::max(alignment, kMinPadding);
  const size_t whole = num_bytes + padding;
  if (whole < num_bytes) return nullptr;
  char* block = static_cast<char*>(
      whole >= kPageBlockBytes
          ? AllocatePageBlock(whole)
          : std::aligned_alloc(padding, (whole + padding - 1) / padding * padding));
  if (block == nullptr) return nullptr;
  char* ptr = block + padding;
  const auto bytes = static_cast<int64_t>(num_bytes);
  const bool in_part = whole >= kPageBlockBytes;
  *HeaderOf(ptr) = {num_bytes, padding,
                    static_cast<size_t>(in_part ? KernelScope::PaysFor(bytes) : bytes)};
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
    std::free(block);
  }
}

size_t SystemAllocator::RequestedSize(const void* ptr) const { return HeaderOf(ptr)->held; }

int64_t SystemAllocator::ReleaseEnd(void* ptr, int64_t kept_bytes) {
  Header* header = HeaderOf(ptr);
  const size_t whole = header->bytes + header->padding;
  if (whole < kPageBlockBytes) return 0;
  char* block = static_cast<char*>(ptr) - header->padding;
  const size_t kept_pages =
      ReleasePages(block, whole, static_cast<size_t>(kept_bytes) + header->padding);
  const size_t kept = std::min(header->held, kept_pages - header->padding);
  return static_cast<int64_t>(std::exchange(header->held, kept) - kept);
}

int64_t SystemAllocator::Unpaid(const void* ptr, int64_t bytes) const {
  const Header* header = HeaderOf(ptr);
  const size_t wanted = std::min(header->bytes, static_cast<size_t>(bytes));
  return wanted > header->held ? static_cast<int64_t>(wanted - header->held) : 0;
}

void SystemAllocator::Paid(void* ptr, int64_t bytes) {
  HeaderOf(ptr)->held += static_cast<size_t>(bytes);
}

}  // namespace tfswap
