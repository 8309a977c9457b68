// A segment tree: the maximum of values to whose ranges amounts are added.

#ifndef TFSWAP_CC_CORE_SIMULATE_MAX_TREE_H_
#define TFSWAP_CC_CORE_SIMULATE_MAX_TREE_H_

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tfswap {

// Linear to build, logarithmic to update.
class MaxTree {
 public:
  explicit MaxTree(const std::vector<int64_t>& values);

  // Add `delta` to the values in [begin, end); indices outside are ignored.
  void Add(int64_t begin, int64_t end, int64_t delta);
  // Return the maximum of all values; 0 if there are none.
  int64_t Max() const { return leaves_ == 0 ? 0 : max_[1]; }

 private:
  void AddBelow(size_t node, int64_t first, int64_t last, int64_t begin, int64_t end,
                int64_t delta);

  int64_t leaves_ = 0;
  int64_t width_ = 1;  // of the tree: a power of two
  // For each node (the root is 1): the maximum of its values, without the amounts that were added
  // to its ancestors.
  std::vector<int64_t> max_;
  std::vector<int64_t> added_;
};

}  // namespace tfswap

#endif  // TFSWAP_CC_CORE_SIMULATE_MAX_TREE_H_
