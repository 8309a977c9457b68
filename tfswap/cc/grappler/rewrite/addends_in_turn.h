#ifndef TFSWAP_CC_GRAPPLER_REWRITE_ADDENDS_IN_TURN_H_
#define TFSWAP_CC_GRAPPLER_REWRITE_ADDENDS_IN_TURN_H_

#include "grappler/index/graph_index.h"

namespace tfswap {

// Return whether the graph has a sum that WithAddendsInTurn() may change.
bool HasLongSums(const tensorflow::GraphDef& graph);

// Return the graph with additions one after the other in place of each AddN of many tensors on a
// CPU, which holds all of them at once (the gradients of a layer that is used at each time step):
//
//     AddN(a, b, c, d) ──▶ ((a + b) + c) + d
//
// They round as AddN does: it adds the first n % 8 tensors (8 or 9 if that is 0 or 1), and then, in
// each pass, the sum of eight more (aggregate_ops.cc of TensorFlow). The gradient of a slice,
// mostly zeros, is made when the tensors before it have been added. Sums of reductions stay: they
// are small.
tensorflow::GraphDef WithAddendsInTurn(const GraphIndex& index);

}  // namespace tfswap

#endif  // TFSWAP_CC_GRAPPLER_REWRITE_ADDENDS_IN_TURN_H_
