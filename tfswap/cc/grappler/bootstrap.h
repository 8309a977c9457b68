#ifndef TFSWAP_GRAPPLER_BOOTSTRAP_H_
#define TFSWAP_GRAPPLER_BOOTSTRAP_H_

#include <string>
#include <utility>
#include <vector>

#include "grappler/graph_index.h"
#include "grappler/swap_spec.h"

namespace tfswap {

// Swaps made from the graph alone, for steps of which there is no trace yet. Sizes are unknown
// (the batch often is), so every swap is lazy: a tensor that is not read for `kLeastAbsence`
// milestones is parked, leaves only when an allocation needs its room, and of the parked ones
// those that are needed last leave first (Belady's rule; the graph knows the order). It is called
// back `kLookAhead` milestones before its next reader: in time to overlap with one of them, and no
// sooner, for what is back takes room.
//
//   depth    1     2     3     4     5     6     7
//   tensor   [made, read]                 | [read by the backward part]
//                  park -------- trigger -+
std::vector<SwapSpec> Bootstrap(const GraphIndex& index);

using Edges = std::vector<std::pair<std::string, std::string>>;  // (before, after)

// Order edges that have cheap work on variables done when it is needed. An optimizer's
// `momentum * m` hangs on nothing but a variable, so the executor computes it for all variables
// when the step begins, and the results lie there until the gradients come.
Edges Delays(const GraphIndex& index);

// Order edges that have updates of variables keep up. The executor's queue has no order: left
// alone, the backward part runs ahead and gradients pile up. With them the update of a variable is
// done at most `kSlack` milestones after it could be.
Edges KeepUps(const GraphIndex& index);

}  // namespace tfswap

#endif  // TFSWAP_GRAPPLER_BOOTSTRAP_H_
