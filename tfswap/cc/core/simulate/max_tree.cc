#include "core/simulate/max_tree.h"

#include <algorithm>
#include <limits>

namespace tfswap {

namespace {

constexpr int64_t kNothing = std::numeric_limits<int64_t>::min() / 2;

}  // namespace

MaxTree::MaxTree(const std::vector<int64_t>& values)
    : leaves_(static_cast<int64_t>(values.size())) {
  while (width_ < leaves_) width_ *= 2;
  max_.assign(static_cast<size_t>(2 * width_), kNothing);
  added_.assign(static_cast<size_t>(2 * width_), 0);
  std::copy(values.begin(), values.end(), max_.begin() + width_);
  for (size_t node = static_cast<size_t>(width_) - 1; node > 0; --node) {
    max_[node] = std::max(max_[2 * node], max_[2 * node + 1]);
  }
}

void MaxTree::Add(int64_t begin, int64_t end, int64_t delta) {
  begin = std::max<int64_t>(begin, 0);
  end = std::min(end, leaves_);
  if (begin < end) AddBelow(1, 0, width_, begin, end, delta);
}

void MaxTree::AddBelow(size_t node, int64_t first, int64_t last, int64_t begin, int64_t end,
                       int64_t delta) {
  if (begin <= first && last <= end) {
    max_[node] += delta;
    added_[node] += delta;
    return;
  }
  const int64_t middle = first + (last - first) / 2;
  if (begin < middle) AddBelow(2 * node, first, middle, begin, end, delta);
  if (end > middle) AddBelow(2 * node + 1, middle, last, begin, end, delta);
  max_[node] = std::max(max_[2 * node], max_[2 * node + 1]) + added_[node];
}

}  // namespace tfswap
