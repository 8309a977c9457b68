#ifndef TFSWAP_CC_CORE_MEMORY_SECTIONS_H_
#define TFSWAP_CC_CORE_MEMORY_SECTIONS_H_

#include <algorithm>
#include <cstdint>

namespace tfswap {

// A large buffer is copied in sections: each one's memory is free as soon as it has left, and is
// taken when it is about to be filled (tvDNN, PPoPP 2018: residency at the grain of sections).
// Smaller pieces would only cost more: with four, all but a quarter of two copies in opposite
// directions overlap where there is room for one buffer only.
class Sections {
 public:
  static constexpr int64_t kLeastBytes = int64_t{16} << 20;
  static constexpr int64_t kMost = 4;
  // Of where they begin: what the system gives back at once.
  static constexpr int64_t kUnitBytes = int64_t{2} << 20;

  explicit Sections(int64_t bytes)
      : bytes_(bytes),
        count_(static_cast<int>(std::clamp<int64_t>(bytes / kLeastBytes, 1, kMost))) {}

  int count() const { return count_; }
  // Of the section with that number; `count()`: the end of all.
  int64_t begin(int number) const {
    return number == count_ ? bytes_ : bytes_ / count_ * number / kUnitBytes * kUnitBytes;
  }
  int64_t bytes(int number) const { return begin(number + 1) - begin(number); }

 private:
  int64_t bytes_;
  int count_;
};

}  // namespace tfswap

#endif  // TFSWAP_CC_CORE_MEMORY_SECTIONS_H_
