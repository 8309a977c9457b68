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
  int64_t bytes_cached = 0;  // kept for the next step, counted against the limit
  int64_t limit_bytes = 0;   // 0: none
};

// Why there is no room for so many bytes more, and what to do about it; a sentence without its full
// stop.
std::string WhyFull(const HostPoolStats& stats, int64_t missing_bytes);

// Far memory on the host: blocks of exact size (rounded up to whole pages, never to powers of two),
// kept between steps because every step asks for the same sizes. In use plus kept never exceeds
// the limit: kept blocks are given back to the system first, then Allocate() answers nullptr.
// Small blocks may share *arenas*, which come from the system and go back to it as a whole.
// Thread-safe.
class HostPool {
 public:
  // What a device wants done with memory that it copies from and to.
  struct Hooks {
    // For what comes from the system (answers whether it may be used), and before it goes back.
    std::function<bool(void* begin, int64_t bytes)> taken;
    std::function<void(void* begin, int64_t bytes)> released;
    // Of arenas, where taking costs more than its bytes; 0: each block comes by itself.
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
  // Gives all kept blocks back to the system, and until the next Allocate() those that are freed.
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
  // From the system; null if the limit or the system has no more.
  void* Take(int64_t bytes);
  void Release(void* begin, int64_t bytes);
  void* Carve(int64_t rounded);
  Arena* ArenaOf(const void* block);
  void DropIdleArena(const std::map<char*, Arena>::iterator& arena);
  void TrimLocked(int64_t at_least_bytes);

  const Hooks hooks_;
  mutable std::mutex mu_;
  // By rounded size; what was given back first is used first, so that copies from it have ended.
  std::map<int64_t, std::deque<void*>> kept_;
  std::map<char*, Arena> arenas_;  // by beginning
  HostPoolStats stats_;
  bool keeps_ = true;
};

}  // namespace tfswap

#endif  // TFSWAP_CC_CORE_MEMORY_HOST_POOL_H_
