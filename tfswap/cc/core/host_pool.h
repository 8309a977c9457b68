#ifndef TFSWAP_CORE_HOST_POOL_H_
#define TFSWAP_CORE_HOST_POOL_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <utility>

namespace tfswap {

struct HostPoolStats {
  int64_t bytes_in_use = 0;
  int64_t peak_bytes_in_use = 0;
  int64_t bytes_cached = 0;  // kept for the next step, counted against the limit
  int64_t limit_bytes = 0;   // 0: none
};

// Far memory on the host: blocks of exact size (rounded up to whole pages, never to powers of two),
// kept between steps because every step asks for the same sizes. In use plus kept never exceeds
// the limit: kept blocks are given back to the system first, then Allocate() answers nullptr.
// Thread-safe.
class HostPool {
 public:
  // What a device wants done with memory that it copies from and to: called once for each block
  // that comes from the system (answers whether it may be used), and before it goes back.
  struct Hooks {
    std::function<bool(void* block, int64_t bytes)> taken;
    std::function<void(void* block, int64_t bytes)> released;
  };

  HostPool() = default;
  explicit HostPool(Hooks hooks) : hooks_(std::move(hooks)) {}
  ~HostPool();
  HostPool(const HostPool&) = delete;
  HostPool& operator=(const HostPool&) = delete;

  void* Allocate(int64_t bytes);
  void Free(void* block, int64_t bytes);

  void SetLimit(int64_t limit_bytes);
  void Trim();  // gives all kept blocks back to the system
  HostPoolStats Stats() const;
  void ResetPeak();

 private:
  void TrimLocked(int64_t at_least_bytes);

  const Hooks hooks_;
  mutable std::mutex mu_;
  // By rounded size; what was given back first is used first, so that copies from it have ended.
  std::map<int64_t, std::deque<void*>> kept_;
  HostPoolStats stats_;
};

}  // namespace tfswap

#endif  // TFSWAP_CORE_HOST_POOL_H_
