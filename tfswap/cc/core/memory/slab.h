// One stretch of addresses, half of it planned, and who is where in it.
//
//   granules   |######......######|####....|........ ... |########..####|............|
//   chunks     |  committed       |  com.  | not backed  |  committed   | not backed |
//              0                           limit         capacity
//              planned places                            any other places
//
// A plan says where a buffer should be; Claim() makes sure that nobody else is. So a wrong plan, or
// a step that runs in another order than the planned one, costs a second place for a buffer, never
// a wrong address. What finds its place taken, or has none, goes to the second half, where it is in
// nobody's way.
//
// On a GPU there is one block of memory, and no second half: what has no place there is somebody
// else's to place.

#ifndef TFSWAP_CC_CORE_MEMORY_SLAB_H_
#define TFSWAP_CC_CORE_MEMORY_SLAB_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

namespace tfswap {

// Who pays for the memory behind a slab.
class MemoryAccount {
 public:
  virtual ~MemoryAccount() = default;
  virtual bool TryReserve(int64_t bytes) = 0;
  virtual void Release(int64_t bytes) = 0;
  // Bytes that should not have been reserved, because the limit has sunk since then.
  virtual int64_t OverBudgetBytes() const = 0;
};

struct SlabStats {
  int64_t limit_bytes = 0;      // the layouts' height
  int64_t committed_bytes = 0;  // backed by memory, and paid for
  int64_t claimed_bytes = 0;    // counted when asked for: no claim pays for it
};

// Thread-safe. Claims and releases take no lock as long as memory is behind them; pages are paid
// for when they are first claimed, and stay.
class Slab {
 public:
  static constexpr int64_t kGranuleBytes = 1024;
  static constexpr int64_t kChunkBytes = 64 * 1024;

  enum class Claimed { kYes, kTaken, kNoMemory, kOutside };

  // `capacity_bytes` of addresses in each half, without memory; `account` may be null. Throws
  // std::bad_alloc if there are none.
  Slab(int64_t capacity_bytes, MemoryAccount* account);
  // Of memory that comes and goes as one block, and is never looked at from here.
  static std::unique_ptr<Slab> OfBlocks(int64_t capacity_bytes);
  ~Slab();
  Slab(const Slab&) = delete;
  Slab& operator=(const Slab&) = delete;

  // Of blocks: from now on this one is behind it, at most the capacity. None was.
  void Attach(char* block, int64_t bytes);
  // The block that is behind it, which is no more; null if there is none, or somebody is in it.
  char* Detach();

  // Planned places lie below it; it may grow and shrink at any time. Idle memory above it goes
  // back.
  void SetLimit(int64_t bytes);

  // Takes [offset, offset + bytes), granules as a whole. `offset` is a multiple of kGranuleBytes.
  // Of the memory behind it only the first `paid` bytes are asked for, if that is above 0.
  Claimed Claim(int64_t offset, int64_t bytes, int64_t paid = 0);
  // Takes the lowest free stretch of the second half; -1 if nobody pays for it.
  int64_t ClaimUnplanned(int64_t bytes, int64_t paid = 0);
  // Takes the highest free stretch that is paid for already, planned for others or not; -1 if there
  // is none.
  int64_t ClaimPaid(int64_t bytes);
  void Release(int64_t offset);
  // Gives back the end of the claim that begins there, all of which is paid for; answers how much.
  // At least `kept` bytes stay its, up to a chunk's end: others share no chunk that it has whole.
  int64_t ReleaseEnd(int64_t offset, int64_t kept);
  // Sees to it that the memory behind the first `paid` bytes of a claim is there.
  bool Pay(int64_t offset, int64_t paid);
  // What was asked for in the claim that begins there, as far as it is paid for and was not given
  // back.
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

  // Gives back up to `bytes` bytes that back nothing; answers how many.
  int64_t Decommit(int64_t bytes);

  // From now on what is free is filled with a pattern, and looked at when it is claimed. Nobody
  // else may use the slab meanwhile.
  void SetCheck(bool check);
  // Claims that found the pattern damaged: somebody wrote to what was not theirs.
  int64_t faults() const { return faults_.load(); }

  int64_t limit_bytes() const { return limit_.load(); }
  // Looks at all of it.
  SlabStats Stats() const;
  // Each half as a line of at most `width` signs, one for an equal part of its addresses: '#'
  // taken, '+' in part, '.' idle, ' ' nothing behind it.
  std::string Picture(int64_t width) const;

 private:
  Slab(int64_t capacity_bytes, int64_t whole_bytes, MemoryAccount* account);
  bool IsOfBlocks() const { return whole_bytes_ == capacity_bytes_; }

  bool ClaimGranules(int64_t first, int64_t last);
  void ReleaseGranules(int64_t first, int64_t last);
  bool ClaimBits(int64_t word, uint64_t bits);
  bool ClaimWords(int64_t first, int64_t last);
  void ReleaseWords(int64_t first, int64_t last);
  // The granules of a word that somebody has.
  uint64_t Taken(int64_t word) const;
  int64_t ClaimedIn(int64_t first_chunk, int64_t last_chunk) const;
  std::string PictureOf(int64_t begin, int64_t end, int64_t width) const;
  Claimed ClaimIn(int64_t end, int64_t offset, int64_t bytes, int64_t paid);
  // The highest free stretch of backed chunks in [begin, end); -1 if there is none.
  int64_t ClaimPaidIn(int64_t begin, int64_t end, int64_t bytes);
  bool Commit(int64_t first_chunk, int64_t last_chunk);
  // With commit_mu_ held.
  int64_t DecommitIdle(int64_t bytes);
  bool DecommitChunk(int64_t chunk);
  // What is backed of it.
  void Poison(int64_t offset, int64_t bytes);
  void CheckPoison(int64_t offset, int64_t bytes);

  MemoryAccount* const account_;
  const int64_t capacity_bytes_;
  const int64_t whole_bytes_;  // both halves
  std::atomic<char*> begin_{nullptr};
  std::atomic<int64_t> end_{0};  // of its addresses
  // By granule, a bit: taken. A claim that has all 64 granules of a word has a bit in words_
  // instead, so that a large one changes few words. Whoever sets a bit of one kind looks at the
  // other afterwards: of two who want the same, one sees it at least.
  std::atomic<uint64_t>* taken_ = nullptr;
  std::atomic<uint64_t>* words_ = nullptr;
  struct Entry {
    int64_t bytes;   // that were asked for
    int64_t unpaid;  // at their end
  };
  // At a claim's first granule.
  Entry* claims_ = nullptr;
  bool IsBacked(int64_t chunk) const {
    return backed_[chunk / 64].load(std::memory_order_acquire) >> (chunk % 64) & 1;
  }

  // By chunk, a bit: it is backed; and the end of all that are in each half.
  std::atomic<uint64_t>* backed_ = nullptr;
  std::atomic<int64_t> backed_end_[2] = {};
  std::atomic<int64_t> decommits_{0};  // times two; odd while chunks are looked at
  std::atomic<int64_t> limit_{0};
  std::atomic<int64_t> committed_{0};
  std::atomic<int64_t> faults_{0};
  std::atomic<bool> check_{false};
  std::mutex commit_mu_;  // whoever changes what is backed
};

}  // namespace tfswap

#endif  // TFSWAP_CC_CORE_MEMORY_SLAB_H_
