// Find repetitions in a sequence: used to find a training step in a stream of events.

#ifndef TFSWAP_CC_CORE_SIMULATE_REPETITION_H_
#define TFSWAP_CC_CORE_SIMULATE_REPETITION_H_

#include <cstdint>
#include <vector>

namespace tfswap {

// `length` symbols from `start` on, followed by the same `length` symbols. Length 0: no repetition.
struct Repetition {
  int64_t start = 0;
  int64_t length = 0;
};

// Return the longest square of `symbols` (Main and Lorentz, J. Algorithms 5, 1984), reduced to its
// period if that is at least `min_length`: several steps are one square as well, and the step is
// its period. Returns the leftmost of several squares of that length. O(n log n).
Repetition LongestRepetition(const std::vector<int64_t>& symbols, int64_t min_length);

}  // namespace tfswap

#endif  // TFSWAP_CC_CORE_SIMULATE_REPETITION_H_
