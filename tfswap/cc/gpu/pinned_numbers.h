#ifndef TFSWAP_CC_GPU_PINNED_NUMBERS_H_
#define TFSWAP_CC_GPU_PINNED_NUMBERS_H_

#include <cstdint>
#include <vector>

#include "core/memory/host_pool.h"

namespace tfswap {

// Pairs of numbers that the GPU writes and the host reads, in pages of a pool of pinned memory. The
// pages are returned when no pair is in use. Not thread-safe.
class PinnedNumbers {
 public:
  explicit PinnedNumbers(HostPool* pool) : pool_(pool) {}
  PinnedNumbers(const PinnedNumbers&) = delete;
  PinnedNumbers& operator=(const PinnedNumbers&) = delete;

  // Return a pair of zeros; null if the pool is exhausted.
  uint64_t* Take() {
    if (free_.empty()) {
      auto* page = static_cast<uint64_t*>(pool_->Allocate(kPageBytes));
      if (page == nullptr) return nullptr;
      pages_.push_back(page);
      for (int64_t i = kPairs; i-- > 0;) free_.push_back(page + 2 * i);
    }
    uint64_t* pair = free_.back();
    free_.pop_back();
    pair[0] = pair[1] = 0;
    return pair;
  }

  // Return a pair that the GPU no longer writes to.
  void Give(uint64_t* pair) {
    free_.push_back(pair);
    if (free_.size() < pages_.size() * kPairs) return;
    for (uint64_t* page : pages_) pool_->Free(page, kPageBytes);
    pages_.clear();
    free_.clear();
  }

 private:
  static constexpr int64_t kPageBytes = 4096;
  static constexpr int64_t kPairs = kPageBytes / (2 * sizeof(uint64_t));

  HostPool* const pool_;
  std::vector<uint64_t*> pages_;
  std::vector<uint64_t*> free_;
};

}  // namespace tfswap

#endif  // TFSWAP_CC_GPU_PINNED_NUMBERS_H_
