// Where a sequence repeats itself: how a training step is found in a stream of events.

#ifndef TFSWAP_CC_CORE_SIMULATE_REPETITION_H_
#define TFSWAP_CC_CORE_SIMULATE_REPETITION_H_

#include <cstdint>
#include <vector>

namespace tfswap {

// `length` symbols from `start` on, followed by the same `length` symbols. Length 0: there is none.
struct Repetition {
  int64_t start = 0;
  int64_t length = 0;
};

// The longest square of `symbols` (Main and Lorentz, J. Algorithms 5, 1984), reduced to its period
// if that is at least `min_length`: several steps are one square too, and the step is its period.
// Of several of that length the leftmost. O(n log n).
Repetition LongestRepetition(const std::vector<int64_t>& symbols, int64_t min_length);

}  // namespace tfswap

#endif  // TFSWAP_CC_CORE_SIMULATE_REPETITION_H_
