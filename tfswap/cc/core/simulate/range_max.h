// The largest of any stretch of fixed values, and where it is first.

#ifndef TFSWAP_CC_CORE_SIMULATE_RANGE_MAX_H_
#define TFSWAP_CC_CORE_SIMULATE_RANGE_MAX_H_

#include <cstdint>
#include <vector>

namespace tfswap {

// Linear to build; a question costs two block scans and a look at a table over blocks.
class RangeMax {
 public:
  RangeMax() = default;
  explicit RangeMax(std::vector<int64_t> values);

  const std::vector<int64_t>& values() const { return values_; }
  // The first place of the largest value in [begin, end), which is not empty.
  int32_t Place(int32_t begin, int32_t end) const;

 private:
  static constexpr int32_t kBlock = 32;

  int32_t Larger(int32_t first, int32_t second) const {
    return values_[second] > values_[first] ? second : first;
  }
  int32_t Scan(int32_t begin, int32_t end) const;

  std::vector<int64_t> values_;
  // By power of two, the place of the largest value of as many blocks from each block on.
  std::vector<std::vector<int32_t>> table_;
};

}  // namespace tfswap

#endif  // TFSWAP_CC_CORE_SIMULATE_RANGE_MAX_H_
