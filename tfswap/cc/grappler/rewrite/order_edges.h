#ifndef TFSWAP_CC_GRAPPLER_REWRITE_ORDER_EDGES_H_
#define TFSWAP_CC_GRAPPLER_REWRITE_ORDER_EDGES_H_

#include <string>
#include <utility>
#include <vector>

#include "grappler/index/graph_index.h"

namespace tfswap {

// Order edges lower the peak without any copies: the executor runs every op that is ready, and many
// ops are ready long before their output is needed.

using Edges = std::vector<std::pair<std::string, std::string>>;  // (before, after)

// Delay cheap work on variables until it is needed. The `momentum * m` of an optimizer depends on
// nothing but a variable, so the executor computes it for all variables when the step starts, and
// the results occupy memory until the gradients arrive. Weight decay updates the variable itself:
// before the backward part has read the old value, that allocates a copy of each variable.
Edges Delays(const GraphIndex& index);

// Run variable updates promptly. The executor's queue has no order: without these edges the
// backward part runs ahead and gradients pile up. With them a variable is updated at most `kSlack`
// milestones after its gradient is ready.
Edges PromptUpdates(const GraphIndex& index);

// Delay the broadcast of a small tensor to a whole activation until the other inputs of its only
// reader are ready. The gradient of a mean is one: it is ready with the sum, but read after the
// rest of the batch norm's gradient.
Edges LateBroadcasts(const GraphIndex& index);

// Let the ops of a device run one after the other, in the order of the bootstrap's clock (those for
// which `RunsInTurn` holds). What runs beside an op takes memory at the wrong time. A GPU runs
// large ops one by one anyway, but the host threads that allocate their memory do not. The graph
// has all other order edges.
Edges Chain(const GraphIndex& index);

// Return those of the edges that let the additions of a sum wait for each other
// (index/accumulation_races.h) and that the graph does not have yet.
Edges OfSums(const GraphIndex& index, const Edges& edges);

// Return the edges that a rewritten graph has between the index's nodes, directly or through nodes
// that are not in the index (copies), besides its own.
Edges EdgesThroughSwaps(const GraphIndex& index, const tensorflow::GraphDef& rewritten);

// Return the graph with the edges added as control inputs.
tensorflow::GraphDef WithEdges(const GraphIndex& index, tensorflow::GraphDef graph,
                               const Edges& edges);

}  // namespace tfswap

#endif  // TFSWAP_CC_GRAPPLER_REWRITE_ORDER_EDGES_H_
