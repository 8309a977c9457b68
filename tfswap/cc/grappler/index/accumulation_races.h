// Sums whose rounding depends on which op is faster.
//
// Where memory is short, TensorFlow's memory optimizer makes an AddN out of an accumulator: each
// addend is added when it is there. The order of three addends decides how their sum is rounded:
//
//     common ─┬─▶ a ────────▶ += ┐
//             ├─▶ b ─▶ c ───▶ += ├─▶ sum       a step repeats itself as long as a, c and e
//             └─▶ d ─▶ e ───▶ += ┘             arrive in the same order
//
// What is done to such a graph must not slow down one of the ways against the others.

#ifndef TFSWAP_CC_GRAPPLER_INDEX_ACCUMULATION_RACES_H_
#define TFSWAP_CC_GRAPPLER_INDEX_ACCUMULATION_RACES_H_

#include <vector>

namespace tfswap {

class GraphIndex;

// By node: is it on such a way, behind the last op that all of the sum's addends need? Needs only
// the index's inputs and positions.
std::vector<bool> AccumulationRaces(const GraphIndex& index);

}  // namespace tfswap

#endif  // TFSWAP_CC_GRAPPLER_INDEX_ACCUMULATION_RACES_H_
