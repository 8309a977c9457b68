#ifndef TFSWAP_CORE_HOST_POOL_H_
#define TFSWAP_CORE_HOST_POOL_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <vector>

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
  HostPool() = default;
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

  mutable std::mutex mu_;
  std::map<int64_t, std::vector<void*>> kept_;  // by rounded size
  HostPoolStats stats_;
};

}  // namespace tfswap

#endif  // TFSWAP_CORE_HOST_POOL_H_
