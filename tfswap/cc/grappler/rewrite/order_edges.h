#ifndef TFSWAP_CC_GRAPPLER_REWRITE_ORDER_EDGES_H_
#define TFSWAP_CC_GRAPPLER_REWRITE_ORDER_EDGES_H_

#include <string>
#include <utility>
#include <vector>

#include "grappler/index/graph_index.h"

namespace tfswap {

// Order edges lower the peak without any traffic: the executor runs whatever is ready, and much is
// ready long before it is needed.

using Edges = std::vector<std::pair<std::string, std::string>>;  // (before, after)

// Order edges that have cheap work on variables done when it is needed. An optimizer's
// `momentum * m` hangs on nothing but a variable, so the executor computes it for all variables
// when the step begins, and the results lie there until the gradients come.
Edges Delays(const GraphIndex& index);

// Order edges that have updates of variables keep up. The executor's queue has no order: left
// alone, the backward part runs ahead and gradients pile up. With them the update of a variable is
// done at most `kSlack` milestones after it could be.
Edges KeepUps(const GraphIndex& index);

// Order edges that have a vector spread over a whole activation only when its one reader has all
// else that it needs. The gradients of a mean are such: made when the sum is, read after the rest
// of the batch norm's gradient.
Edges LateBroadcasts(const GraphIndex& index);

// Order edges that have a GPU's large ops given to it one after the other, in the order of the
// bootstrap's clock; none where a CPU is managed. A GPU runs them one after the other anyway, but
// the host, which hands out the memory, would not: what a swap-in goes on to runs on another
// thread. Without those that `delays` hold back.
Edges Chain(const GraphIndex& index, const Edges& delays);

// The graph with edges from `index`'s nodes added as control inputs.
tensorflow::GraphDef WithEdges(const GraphIndex& index, tensorflow::GraphDef graph,
                               const Edges& edges);

}  // namespace tfswap

#endif  // TFSWAP_CC_GRAPPLER_REWRITE_ORDER_EDGES_H_
