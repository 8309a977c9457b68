#include "core/simulate/range_max.h"

#include <algorithm>
#include <utility>

namespace tfswap {

RangeMax::RangeMax(std::vector<int64_t> values) : values_(std::move(values)) {
  const auto count = static_cast<int32_t>(values_.size());
  std::vector<int32_t> of_blocks;
  for (int32_t begin = 0; begin < count; begin += kBlock) {
    of_blocks.push_back(Scan(begin, std::min(begin + kBlock, count)));
  }
  const size_t blocks = of_blocks.size();
  table_.push_back(std::move(of_blocks));
  for (size_t width = 2; width <= blocks; width *= 2) {
    const std::vector<int32_t>& half = table_.back();
    std::vector<int32_t> whole(blocks - width + 1);
    for (size_t i = 0; i < whole.size(); ++i) whole[i] = Larger(half[i], half[i + width / 2]);
    table_.push_back(std::move(whole));
  }
}

int32_t RangeMax::ArgMax(int32_t begin, int32_t end) const {
  const int32_t first_block = (begin + kBlock - 1) / kBlock;
  const int32_t last_block = end / kBlock;
  if (first_block >= last_block) return Scan(begin, end);
  int32_t best = begin;
  if (begin < first_block * kBlock) best = Scan(begin, first_block * kBlock);
  int32_t level = 0;
  while ((2 << level) <= last_block - first_block) ++level;
  best = Larger(best, table_[level][first_block]);
  best = Larger(best, table_[level][last_block - (1 << level)]);
  if (last_block * kBlock < end) best = Larger(best, Scan(last_block * kBlock, end));
  return best;
}

int32_t RangeMax::Scan(int32_t begin, int32_t end) const {
  int32_t best = begin;
  for (int32_t i = begin + 1; i < end; ++i) best = Larger(best, i);
  return best;
}

}  // namespace tfswap
