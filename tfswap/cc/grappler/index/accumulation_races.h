// Find sums whose rounding depends on the order in which their addends become ready.
//
// When memory is short, Grappler's memory optimizer rewrites an AddN into an accumulator to which
// each addend is added as soon as it is ready. With three or more addends the order changes the
// rounding:
//
//     common ─┬─▶ a ────────▶ += ┐
//             ├─▶ b ─▶ c ───▶ += ├─▶ sum       a step is reproducible as long as a, c and e
//             └─▶ d ─▶ e ───▶ += ┘             arrive in the same order
//
// A rewrite of such a graph must not slow down one path relative to the others. An addend that
// another one depends on comes first and races with it in no order: a residual connection's input,
// say, and what the layers on top of it make. Additions that wait for each other in a fixed order
// do not race: a plan can have them wait in the order in which they ran while the step was
// recorded.

#ifndef TFSWAP_CC_GRAPPLER_INDEX_ACCUMULATION_RACES_H_
#define TFSWAP_CC_GRAPPLER_INDEX_ACCUMULATION_RACES_H_

#include <vector>

namespace tfswap {

class GraphIndex;

// Return the additions to each accumulator to which several values are added one by one.
std::vector<std::vector<int>> Accumulations(const GraphIndex& index);

// Return, by node, whether it lies on such a path, after the last op that the racing addends all
// depend on. Uses only the inputs and positions of the index.
std::vector<bool> AccumulationRaces(const GraphIndex& index);

}  // namespace tfswap

#endif  // TFSWAP_CC_GRAPPLER_INDEX_ACCUMULATION_RACES_H_
