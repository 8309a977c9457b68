#ifndef TFSWAP_CC_GRAPPLER_REWRITE_BOOTSTRAP_H_
#define TFSWAP_CC_GRAPPLER_REWRITE_BOOTSTRAP_H_

#include <vector>

#include "grappler/index/graph_index.h"
#include "grappler/rewrite/order_edges.h"
#include "grappler/swap_spec.h"

namespace tfswap {

// Return on-demand swaps derived from the graph alone, for steps that have no trace yet.
//
// Sizes are unknown (often the batch size is), so every swap is on demand (demand paging): a tensor
// that is not read for `kMinAbsence` milestones becomes evictable, and is copied out only if an
// allocation needs its memory. Among the evictable tensors, the one with the latest next use is
// evicted first (Belady's rule; the graph gives the order). It is prefetched `kLookAhead`
// milestones before its next reader: early enough to overlap with one milestone, and no earlier
// because it occupies memory again. For the same reason it is not prefetched before a pooling
// gradient, whose output is much larger than its inputs.
//
//  depth    1     2     3     4     5     6     7
//  tensor   [made, read]                 | [read by the backward part]
//               evictable ----- trigger -+
//
// Between neighbouring milestones a tensor becomes evictable as well if two gateable ops run on the
// path to its reader; the later one triggers the prefetch. The gradient of batch norm has such
// tensors.
//
// Ops run in the order of `chain` (order_edges.h), on a GPU the large ones. The op of the chain
// before the reader triggers the swap-in, also before a reader that may be fused and therefore is
// not in the chain.
std::vector<SwapSpec> Bootstrap(const GraphIndex& index, const Edges& chain);

// Return (trigger, reader) for each racing reader: its evicted inputs come back when the trigger
// has ended, because it must not wait for them.
Edges RacingTriggers(const GraphIndex& index);

}  // namespace tfswap

#endif  // TFSWAP_CC_GRAPPLER_REWRITE_BOOTSTRAP_H_
