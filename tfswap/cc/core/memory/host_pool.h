#ifndef TFSWAP_CC_CORE_MEMORY_HOST_POOL_H_
#define TFSWAP_CC_CORE_MEMORY_HOST_POOL_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace tfswap {

struct HostPoolStats {
  int64_t bytes_in_use = 0;
  int64_t peak_bytes_in_use = 0;
  int64_t bytes_cached = 0;  // for the next step; counts against the limit
  int64_t limit_bytes = 0;   // 0: none
  std::string refusal;  // why the device refused the memory last taken for it; "" if it did not
};

// Return why `missing_bytes` more do not fit and what to do about it: a sentence without its full
// stop.
std::string WhyFull(const HostPoolStats& stats, int64_t missing_bytes);

// A pool of host memory for far copies.
//
// Blocks have exact sizes (rounded up to 1 KiB or whole pages, not to powers of two) and are cached
// between steps, because every step requests the same sizes. Bytes in use plus cached never exceed
// the limit: cached blocks are given back to the source first, then Allocate() returns nullptr.
// Small blocks may share *arenas*, which are taken and given back as a whole. Thread-safe.
class HostPool {
 public:
  // Where the memory comes from: the system, or a GPU's driver.
  struct Source {
    struct Taken {
      void* begin;          // null: there is no memory
      std::string refusal;  // then the reason; "" if it is not known
    };
    // Called without the pool's lock, because pinning memory takes long.
    std::function<Taken(int64_t bytes)> take;
    std::function<void(void* begin, int64_t bytes)> give_back;
    // The size of arenas, if taking memory is expensive; 0: no arenas.
    int64_t arena_bytes = 0;
  };
  // Pageable memory, in huge pages if the kernel has any.
  static Source System(int64_t arena_bytes);

  explicit HostPool(Source source) : source_(std::move(source)) {}
  ~HostPool();
  HostPool(const HostPool&) = delete;
  HostPool& operator=(const HostPool&) = delete;

  void* Allocate(int64_t bytes);
  void Free(void* block, int64_t bytes);

  // Take memory for blocks of these sizes, to be held at the same time, as far as the limit and the
  // source allow.
  void Prepare(const std::vector<int64_t>& sizes);
  void SetLimit(int64_t limit_bytes);
  // Give back all cached blocks, and until the next Allocate() each block that is freed.
  void Trim();
  HostPoolStats Stats() const;
  void ResetPeak();

 private:
  struct Arena {
    int64_t bytes = 0;
    int64_t carved_bytes = 0;  // from its beginning on
    int64_t used_bytes = 0;
  };

  using Lock = std::unique_lock<std::mutex>;

  bool IsSmall(int64_t rounded) const { return rounded <= source_.arena_bytes / 4; }
  // Return memory from the source, which counts as cached; null if the limit is reached or the
  // source has no more. Releases the lock meanwhile.
  void* Take(Lock* lock, int64_t bytes);
  void GiveBack(void* begin, int64_t bytes);
  // Take an arena; return whether there is memory for it.
  bool TakeArena(Lock* lock, int64_t bytes);
  void* Carve(Lock* lock, int64_t rounded);
  Arena* ArenaOf(const void* block);
  void DropIdleArena(const std::map<char*, Arena>::iterator& arena);
  // Return by how much the limit would be exceeded with so many more bytes; at most 0 if it is
  // kept.
  int64_t OverLimitBytes(int64_t more_bytes) const;
  void TrimLocked(int64_t at_least_bytes);

  const Source source_;
  mutable std::mutex mu_;
  // By rounded size. FIFO reuse, so that copies from a block have most likely ended.
  std::map<int64_t, std::deque<void*>> cached_;
  std::map<char*, Arena> arenas_;  // by beginning
  HostPoolStats stats_;
  bool caching_ = true;
};

}  // namespace tfswap

#endif  // TFSWAP_CC_CORE_MEMORY_HOST_POOL_H_
