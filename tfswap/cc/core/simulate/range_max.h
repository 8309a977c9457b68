// Range maximum queries on fixed values.

#ifndef TFSWAP_CC_CORE_SIMULATE_RANGE_MAX_H_
#define TFSWAP_CC_CORE_SIMULATE_RANGE_MAX_H_

#include <cstdint>
#include <vector>

namespace tfswap {

// A sparse table over blocks: linear to build; a query scans two blocks and looks up the table.
class RangeMax {
 public:
  RangeMax() = default;
  explicit RangeMax(std::vector<int64_t> values);

  const std::vector<int64_t>& values() const { return values_; }
  // Return the first index of the maximum in [begin, end), which must not be empty.
  int32_t ArgMax(int32_t begin, int32_t end) const;

 private:
  static constexpr int32_t kBlock = 32;

  int32_t Larger(int32_t first, int32_t second) const {
    return values_[second] > values_[first] ? second : first;
  }
  int32_t Scan(int32_t begin, int32_t end) const;

  std::vector<int64_t> values_;
  // By power of two, the index of the maximum of so many blocks from each block on.
  std::vector<std::vector<int32_t>> table_;
};

}  // namespace tfswap

#endif  // TFSWAP_CC_CORE_SIMULATE_RANGE_MAX_H_
