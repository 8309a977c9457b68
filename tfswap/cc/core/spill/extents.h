#ifndef TFSWAP_CC_CORE_SPILL_EXTENTS_H_
#define TFSWAP_CC_CORE_SPILL_EXTENTS_H_

#include <cstdint>
#include <map>
#include <set>
#include <utility>

namespace tfswap {

// The free extents of a file. Best fit (the lowest of equal ones), with coalescing, so that steps
// that request the same sizes in the same order get the same offsets.
//
//  |#####....######..###.........|
//  0     free      free  free at the end: Grow() extends it
class Extents {
 public:
  // Allocate an extent and return its offset; -1 if no free extent is large enough.
  int64_t Take(int64_t bytes);
  // Free an extent, which must be allocated.
  void Release(int64_t offset, int64_t bytes);
  // Add free bytes at the end.
  void Grow(int64_t bytes);

  int64_t end() const { return end_; }
  int64_t free_bytes() const { return free_bytes_; }
  int64_t free_bytes_at_end() const;
  int64_t largest_free_bytes() const { return by_bytes_.empty() ? 0 : by_bytes_.rbegin()->first; }

 private:
  using ByOffset = std::map<int64_t, int64_t>;  // offset -> bytes

  void Add(int64_t offset, int64_t bytes);
  void Drop(ByOffset::iterator stretch);

  ByOffset by_offset_;
  std::set<std::pair<int64_t, int64_t>> by_bytes_;  // (bytes, offset)
  int64_t end_ = 0;
  int64_t free_bytes_ = 0;
};

}  // namespace tfswap

#endif  // TFSWAP_CC_CORE_SPILL_EXTENTS_H_
