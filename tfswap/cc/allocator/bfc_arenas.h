#ifndef TFSWAP_CC_ALLOCATOR_BFC_ARENAS_H_
#define TFSWAP_CC_ALLOCATOR_BFC_ARENAS_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "allocator/adaptor.h"
#include "xla/tsl/framework/bfc_allocator.h"

namespace tfswap {

// TensorFlow's BFC allocator over `bytes` bytes, all of which it has from the beginning.
std::unique_ptr<tsl::BFCAllocator> MakeBfc(int64_t bytes, char** begin);

struct BfcStats {
  int64_t arena_bytes = 0;
  int64_t bytes_in_use = 0;      // as BFC rounds them
  int64_t high_water_bytes = 0;  // the end of the highest block that there was
  int64_t largest_free_bytes = 0;
};

// Serves from an arena of TensorFlow's BFC allocator while one is open, else from the next
// allocator: what a device does that knows nothing about its steps. For comparisons. Thread-safe.
class BfcArenas : public SizedAdaptor {
 public:
  explicit BfcArenas(tensorflow::Allocator* next) : SizedAdaptor(next) {}

  // Whether any block may be from an arena.
  bool EverOpened() const { return any_.load(std::memory_order_acquire); }
  // From now on blocks come from a new arena of that many bytes, or are refused; 0: from the next
  // allocator. Blocks of former arenas stay where they are.
  void Open(int64_t bytes);

  using SizedAdaptor::AllocateRaw;
  void* AllocateRaw(size_t alignment, size_t num_bytes,
                    const tensorflow::AllocationAttributes& attributes) override;
  void DeallocateRaw(void* ptr) override;
  size_t RequestedSize(const void* ptr) const override;

  BfcStats Stats() const;

 private:
  struct Arena {
    std::unique_ptr<tsl::BFCAllocator> bfc;
    char* begin = nullptr;
    int64_t bytes = 0;
    std::atomic<int64_t> high_water{0};
    bool Owns(const void* ptr) const { return ptr >= begin && ptr < begin + bytes; }
  };
  Arena* Owner(const void* ptr) const;

  std::atomic<Arena*> open_{nullptr};
  std::atomic<bool> any_{false};
  mutable std::mutex mu_;
  std::vector<std::unique_ptr<Arena>> arenas_;  // kept: nobody knows when their last block goes
};

}  // namespace tfswap

#endif  // TFSWAP_CC_ALLOCATOR_BFC_ARENAS_H_
