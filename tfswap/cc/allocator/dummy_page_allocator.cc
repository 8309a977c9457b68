#include "allocator/dummy_page_allocator.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "allocator/kernel_scope.h"

namespace tfswap {

namespace {

constexpr size_t kPageBytes = 4096;
constexpr size_t kPieceBytes = size_t{4} << 20;

size_t MappedBytes(size_t bytes) { return (bytes + kPageBytes) / kPageBytes * kPageBytes; }

// Map all addresses to the one piece of the memory file; return whether that worked.
bool MapPieces(char* begin, size_t bytes, int file) {
  if (ftruncate(file, kPieceBytes) != 0) return false;
  for (size_t at = 0; at < bytes; at += kPieceBytes) {
    if (mmap(begin + at, std::min(kPieceBytes, bytes - at), PROT_READ | PROT_WRITE,
             MAP_SHARED | MAP_FIXED, file, 0) == MAP_FAILED) {
      return false;
    }
  }
  return true;
}

// Return addresses that all map to one piece of memory; null on failure.
void* Map(size_t bytes) {
  const size_t whole = MappedBytes(bytes);
  void* begin = mmap(nullptr, whole, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (begin == MAP_FAILED) return nullptr;
  const int file = memfd_create("tfswap_dummy_pages", MFD_CLOEXEC);
  const bool mapped = file >= 0 && MapPieces(static_cast<char*>(begin), whole, file);
  if (file >= 0) close(file);  // the mappings keep it
  if (mapped) return begin;
  munmap(begin, whole);
  return nullptr;
}

}  // namespace

void* DummyPageAllocator::AllocateRaw(size_t alignment, size_t num_bytes,
                                      const tensorflow::AllocationAttributes& attributes) {
  void* ptr = next()->AllocateRaw(alignment, num_bytes, attributes);
  KernelScope* scope = KernelScope::current;
  if (ptr != nullptr || scope == nullptr || !scope->crashes || alignment > kPageBytes) return ptr;
  std::string why = absl::StrCat("OOM when allocating ", num_bytes, " bytes by allocator ", Name());
  ptr = Map(num_bytes);
  if (ptr == nullptr) return nullptr;
  if (scope->failure.empty()) scope->failure = std::move(why);
  std::lock_guard<std::mutex> lock(mu_);
  blocks_[ptr] = num_bytes;
  alive_.fetch_add(1, std::memory_order_relaxed);
  return ptr;
}

void DummyPageAllocator::DeallocateRaw(void* ptr) {
  const size_t bytes = SizeOf(ptr);
  if (bytes == 0) {
    next()->DeallocateRaw(ptr);
    return;
  }
  {
    std::lock_guard<std::mutex> lock(mu_);
    blocks_.erase(ptr);
    alive_.fetch_sub(1, std::memory_order_relaxed);
  }
  munmap(ptr, MappedBytes(bytes));
}

size_t DummyPageAllocator::RequestedSize(const void* ptr) const {
  const size_t bytes = SizeOf(ptr);
  return bytes > 0 ? bytes : next()->RequestedSize(ptr);
}

int64_t DummyPageAllocator::AllocationId(const void* ptr) const {
  return SizeOf(ptr) > 0 ? 0 : next()->AllocationId(ptr);
}

size_t DummyPageAllocator::SizeOf(const void* ptr) const {
  if (alive_.load(std::memory_order_relaxed) == 0) return 0;
  std::lock_guard<std::mutex> lock(mu_);
  const auto found = blocks_.find(ptr);
  return found == blocks_.end() ? 0 : found->second;
}

}  // namespace tfswap
