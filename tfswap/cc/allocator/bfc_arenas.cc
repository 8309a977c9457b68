#include "allocator/bfc_arenas.h"

#include "allocator/page_blocks.h"
#include "core/util/atomic_max.h"

namespace tfswap {

namespace {

// One region, of all bytes at once.
class Pages : public tsl::SubAllocator {
 public:
  explicit Pages(char** begin) : SubAllocator({}, {}), begin_(begin) {}
  void* Alloc(size_t, size_t num_bytes, size_t* bytes_received) override {
    *bytes_received = num_bytes;
    *begin_ = static_cast<char*>(AllocatePageBlock(num_bytes));
    return *begin_;
  }
  void Free(void* ptr, size_t num_bytes) override { FreePageBlock(ptr, num_bytes); }
  bool SupportsCoalescing() const override { return false; }

 private:
  char** const begin_;
};

}  // namespace

std::unique_ptr<tsl::BFCAllocator> MakeBfc(int64_t bytes, char** begin) {
  tsl::BFCAllocator::Options options;
  options.allow_growth = false;
  options.allow_retry_on_failure = false;
  return std::make_unique<tsl::BFCAllocator>(std::make_unique<Pages>(begin), bytes, "bfc", options);
}

void BfcArenas::Open(int64_t bytes) {
  if (bytes <= 0) {
    open_.store(nullptr);
    return;
  }
  auto arena = std::make_unique<Arena>();
  arena->bytes = bytes;
  arena->bfc = MakeBfc(bytes, &arena->begin);
  // It takes its region with the first block.
  tensorflow::AllocationAttributes attributes;
  arena->bfc->DeallocateRaw(arena->bfc->AllocateRaw(64, 64, attributes));
  std::lock_guard<std::mutex> lock(mu_);
  arenas_.push_back(std::move(arena));
  any_.store(true);
  open_.store(arenas_.back().get());
}

void* BfcArenas::AllocateRaw(size_t alignment, size_t num_bytes,
                             const tensorflow::AllocationAttributes& attributes) {
  Arena* arena = open_.load(std::memory_order_acquire);
  if (arena == nullptr) return next()->AllocateRaw(alignment, num_bytes, attributes);
  // A refusal is no reason to write its whole state to the log.
  tensorflow::AllocationAttributes quietly(false, true, nullptr);
  void* ptr = arena->bfc->AllocateRaw(alignment, num_bytes, quietly);
  if (ptr == nullptr) return nullptr;
  const int64_t end =
      static_cast<char*>(ptr) + static_cast<int64_t>(arena->bfc->AllocatedSize(ptr)) - arena->begin;
  RaiseTo(end, &arena->high_water);
  return ptr;
}

void BfcArenas::DeallocateRaw(void* ptr) {
  Arena* arena = ptr == nullptr ? nullptr : Owner(ptr);
  if (arena != nullptr) {
    arena->bfc->DeallocateRaw(ptr);
  } else {
    next()->DeallocateRaw(ptr);
  }
}

size_t BfcArenas::RequestedSize(const void* ptr) const {
  const Arena* arena = Owner(ptr);
  return arena != nullptr ? arena->bfc->RequestedSize(ptr) : next()->RequestedSize(ptr);
}

BfcStats BfcArenas::Stats() const {
  BfcStats stats;
  const Arena* arena = open_.load(std::memory_order_acquire);
  if (arena == nullptr) return stats;
  const auto own = arena->bfc->GetStats().value_or(tensorflow::AllocatorStats());
  stats.arena_bytes = arena->bytes;
  stats.bytes_in_use = own.bytes_in_use;
  stats.high_water_bytes = arena->high_water.load();
  stats.largest_free_bytes = own.largest_free_block_bytes;
  return stats;
}

BfcArenas::Arena* BfcArenas::Owner(const void* ptr) const {
  if (!any_.load(std::memory_order_acquire)) return nullptr;
  std::lock_guard<std::mutex> lock(mu_);
  for (const auto& arena : arenas_) {
    if (arena->Owns(ptr)) return arena.get();
  }
  return nullptr;
}

}  // namespace tfswap
