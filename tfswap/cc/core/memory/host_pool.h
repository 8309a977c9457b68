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
// Blocks have exact sizes (rounded up to whole pages, not to powers of two) and are cached between
// steps, because every step requests the same sizes. Bytes in use plus cached never exceed the
// limit: cached blocks are released to the system first, then Allocate() returns nullptr. Small
// blocks may share *arenas*, which are mapped and unmapped as a whole. Thread-safe.
class HostPool {
 public:
  // Callbacks of a device for memory that it copies from and to.
  struct Hooks {
    // Called with memory from the system (returns why it cannot be used, or ""), and before it is
    // released to the system.
    std::function<std::string(void* begin, int64_t bytes)> taken;
    std::function<void(void* begin, int64_t bytes)> released;
    // The size of arenas, if registering memory is expensive; 0: no arenas.
    int64_t arena_bytes = 0;
  };

  HostPool() = default;
  explicit HostPool(Hooks hooks) : hooks_(std::move(hooks)) {}
  ~HostPool();
  HostPool(const HostPool&) = delete;
  HostPool& operator=(const HostPool&) = delete;

  void* Allocate(int64_t bytes);
  void Free(void* block, int64_t bytes);

  void SetLimit(int64_t limit_bytes);
  // Release all cached blocks, and until the next Allocate() each block that is freed.
  void Trim();
  HostPoolStats Stats() const;
  void ResetPeak();

 private:
  struct Arena {
    int64_t bytes = 0;
    int64_t carved_bytes = 0;  // from its beginning on
    int64_t used_bytes = 0;
  };

  bool IsSmall(int64_t rounded) const { return rounded <= hooks_.arena_bytes / 4; }
  // Return memory from the system; null if the limit is reached or the system has no more.
  void* MapFromSystem(int64_t bytes);
  void Release(void* begin, int64_t bytes);
  void* Carve(int64_t rounded);
  Arena* ArenaOf(const void* block);
  void DropIdleArena(const std::map<char*, Arena>::iterator& arena);
  void TrimLocked(int64_t at_least_bytes);

  const Hooks hooks_;
  mutable std::mutex mu_;
  // By rounded size. FIFO reuse, so that copies from a block have most likely ended.
  std::map<int64_t, std::deque<void*>> cached_;
  std::map<char*, Arena> arenas_;  // by beginning
  HostPoolStats stats_;
  bool caching_ = true;
};

}  // namespace tfswap

#endif  // TFSWAP_CC_CORE_MEMORY_HOST_POOL_H_
