#ifndef TFSWAP_CC_GRAPPLER_REWRITE_BOOTSTRAP_H_
#define TFSWAP_CC_GRAPPLER_REWRITE_BOOTSTRAP_H_

#include <vector>

#include "grappler/index/graph_index.h"
#include "grappler/swap_spec.h"

namespace tfswap {

// Swaps made from the graph alone, for steps of which there is no trace yet. Sizes are unknown
// (the batch often is), so every swap is lazy: a tensor that is not read for `kLeastAbsence`
// milestones is parked, leaves only when an allocation needs its room, and of the parked ones
// those that are needed last leave first (Belady's rule; the graph knows the order). It is called
// back `kLookAhead` milestones before its next reader: in time to overlap with one of them, and no
// sooner, for what is back takes room; so it is not before a pooling's gradient, which makes many
// times what it reads.
//
//   depth    1     2     3     4     5     6     7
//   tensor   [made, read]                 | [read by the backward part]
//                  park -------- trigger -+
//
// Between neighbouring milestones a tensor is parked too if two gateable ops run on the way to its
// reader; the nearer one calls it back. Batch norm's gradient has such tensors.
std::vector<SwapSpec> Bootstrap(const GraphIndex& index);

}  // namespace tfswap

#endif  // TFSWAP_CC_GRAPPLER_REWRITE_BOOTSTRAP_H_
