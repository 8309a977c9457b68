// An address range of which one half has planned placements.
//
//  granules   |######......######|####....|........ ... |########..####|............|
//  chunks     |  committed       |  com.  | not backed  |  committed   | not backed |
//             0                           limit         capacity
//             planned offsets                           any other buffer
//
// A plan assigns an offset to a buffer; Claim() checks that the addresses are free. So a wrong
// plan, or a step that runs in a different order, costs a second placement but never corrupts
// memory. A buffer whose addresses are occupied, or without a planned offset, goes to the second
// half, where it does not block planned ones.
//
// On a GPU the slab is one block of memory without a second half; the next allocator serves all
// other buffers.

#ifndef TFSWAP_CC_CORE_MEMORY_SLAB_H_
#define TFSWAP_CC_CORE_MEMORY_SLAB_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

namespace tfswap {

// Accounts for the memory that backs a slab.
class MemoryAccount {
 public:
  virtual ~MemoryAccount() = default;
  virtual bool TryReserve(int64_t bytes) = 0;
  virtual void Release(int64_t bytes) = 0;
  // Bytes reserved beyond the budget, because the budget was lowered afterwards.
  virtual int64_t OverBudgetBytes() const = 0;
};

struct SlabStats {
  int64_t limit_bytes = 0;      // height of the memory layouts
  int64_t committed_bytes = 0;  // backed by memory and reserved in the account
  int64_t claimed_bytes = 0;    // counted on request
};

// Thread-safe. Claims and releases are lock-free if their memory is committed. Chunks are reserved
// in the account ("paid for") when they are first claimed, and stay committed.
class Slab {
 public:
  static constexpr int64_t kGranuleBytes = 1024;
  static constexpr int64_t kChunkBytes = 64 * 1024;

  enum class Claimed { kYes, kTaken, kNoMemory, kOutside };

  // Reserve `capacity_bytes` of addresses for each half, without memory; `account` may be null.
  // Throws std::bad_alloc on failure.
  Slab(int64_t capacity_bytes, MemoryAccount* account);
  // Create a slab over one block of memory, which Attach() provides and which the host never
  // accesses.
  static std::unique_ptr<Slab> BlockBacked(int64_t capacity_bytes);
  ~Slab();
  Slab(const Slab&) = delete;
  Slab& operator=(const Slab&) = delete;

  // Set the block that backs a BlockBacked slab; only up to the capacity is used. There must be
  // none.
  void Attach(char* block, int64_t bytes);
  // Remove and return the block; null if there is none or a part of it is claimed.
  char* Detach();

  // Set the end of the planned offsets; it may change at any time. Idle memory beyond it is
  // released.
  void SetLimit(int64_t bytes);

  // Claim [offset, offset + bytes) in whole granules. `offset` must be a multiple of kGranuleBytes.
  // If `paid` is positive, only the first `paid` bytes are committed.
  Claimed Claim(int64_t offset, int64_t bytes, int64_t paid = 0);
  // Claim the lowest free range of the second half; -1 if its memory cannot be committed.
  // `takes_idle`: release other idle memory for it.
  int64_t ClaimUnplanned(int64_t bytes, int64_t paid = 0, bool takes_idle = true);
  // Claim the highest free range that is already committed, in either half; -1 if there is none.
  int64_t ClaimPaid(int64_t bytes);
  void Release(int64_t offset);
  // Release the end of a fully committed claim and return its bytes. At least `kept` bytes stay
  // claimed, rounded up to the end of a chunk.
  int64_t ReleaseEnd(int64_t offset, int64_t kept);
  // Commit the first `paid` bytes of a claim; return false if that fails.
  bool Pay(int64_t offset, int64_t paid);
  // The bytes of the claim at `offset` that are committed and not released.
  int64_t BytesOf(int64_t offset) const {
    const Entry& claim = claims_[offset / kGranuleBytes];
    return claim.bytes - claim.unpaid;
  }

  char* At(int64_t offset) const { return begin_.load(std::memory_order_relaxed) + offset; }
  bool Owns(const void* ptr) const {
    const int64_t offset = OffsetOf(ptr);
    return offset >= 0 && offset < end_.load(std::memory_order_relaxed);
  }
  int64_t OffsetOf(const void* ptr) const { return static_cast<const char*>(ptr) - At(0); }

  // Release up to `bytes` bytes of idle memory to the system; return the released bytes.
  int64_t Decommit(int64_t bytes);

  // Fill free memory with a pattern from now on, and check it at each claim. No other thread may
  // use the slab during the call.
  void SetCheck(bool check);
  // The number of claims that found the pattern damaged: something wrote to freed memory.
  int64_t faults() const { return faults_.load(); }

  int64_t limit_bytes() const { return limit_.load(); }
  // Scans the whole slab.
  SlabStats Stats() const;
  // Return an occupancy map: each half as a line of at most `width` characters for equal parts of
  // its addresses: '#' claimed, '+' partly claimed, '.' idle, ' ' not backed.
  std::string Picture(int64_t width) const;

 private:
  Slab(int64_t capacity_bytes, int64_t whole_bytes, MemoryAccount* account);
  bool IsBlockBacked() const { return whole_bytes_ == capacity_bytes_; }

  bool ClaimGranules(int64_t first, int64_t last);
  void ReleaseGranules(int64_t first, int64_t last);
  bool ClaimBits(int64_t word, uint64_t bits);
  bool ClaimWords(int64_t first, int64_t last);
  void ReleaseWords(int64_t first, int64_t last);
  // The claimed granules of a word.
  uint64_t Taken(int64_t word) const;
  int64_t ClaimedIn(int64_t first_chunk, int64_t last_chunk) const;
  std::string PictureOf(int64_t begin, int64_t end, int64_t width) const;
  Claimed ClaimIn(int64_t end, int64_t offset, int64_t bytes, int64_t paid, bool takes_idle = true);
  // The highest free range of backed chunks in [begin, end); -1 if there is none.
  int64_t ClaimPaidIn(int64_t begin, int64_t end, int64_t bytes);
  bool Commit(int64_t first_chunk, int64_t last_chunk, bool takes_idle = true);
  // Call these two with commit_mu_ held.
  int64_t DecommitIdle(int64_t bytes);
  bool DecommitChunk(int64_t chunk);
  // Affects the backed part only.
  void Poison(int64_t offset, int64_t bytes);
  void CheckPoison(int64_t offset, int64_t bytes);

  MemoryAccount* const account_;
  const int64_t capacity_bytes_;
  const int64_t whole_bytes_;  // both halves
  std::atomic<char*> begin_{nullptr};
  std::atomic<int64_t> end_{0};  // end offset of the addresses
  // One bit per granule: claimed. A claim of all 64 granules of a word sets one bit in words_
  // instead, so that large claims touch few words. A claim sets its bits of one kind and then
  // checks the other kind, so of two conflicting claims at least one sees the other.
  std::atomic<uint64_t>* taken_ = nullptr;
  std::atomic<uint64_t>* words_ = nullptr;
  struct Entry {
    int64_t bytes;   // claimed
    int64_t unpaid;  // not committed, at the end
  };
  // Indexed by the first granule of a claim.
  Entry* claims_ = nullptr;
  bool IsBacked(int64_t chunk) const {
    return backed_[chunk / 64].load(std::memory_order_acquire) >> (chunk % 64) & 1;
  }

  // One bit per chunk: backed; and the end of the backed chunks of each half.
  std::atomic<uint64_t>* backed_ = nullptr;
  std::atomic<int64_t> backed_end_[2] = {};
  std::atomic<int64_t> decommits_{0};  // times two; odd during a search for idle chunks
  std::atomic<int64_t> limit_{0};
  std::atomic<int64_t> committed_{0};
  std::atomic<int64_t> faults_{0};
  std::atomic<bool> check_{false};
  std::mutex commit_mu_;  // held while backing changes
};

}  // namespace tfswap

#endif  // TFSWAP_CC_CORE_MEMORY_SLAB_H_
