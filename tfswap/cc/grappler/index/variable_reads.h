// When variables are read whose values give their memory up (kernels/streamed_variables.h).
//
// What a ReadVariableOp gives shares the value's memory, and keeps it on the device until the last
// of its readers has run. Left alone, the executor reads all variables when the step begins.

#ifndef TFSWAP_CC_GRAPPLER_INDEX_VARIABLE_READS_H_
#define TFSWAP_CC_GRAPPLER_INDEX_VARIABLE_READS_H_

#include "grappler/index/graph_index.h"
#include "grappler/rewrite/order_edges.h"
#include "tensorflow/core/framework/graph.pb.h"

namespace tfswap {

// The graph in which the backward part reads variables by itself, so that they may be away in
// between.
tensorflow::GraphDef WithBackwardReads(const GraphIndex& index, const tensorflow::GraphDef& graph);

// Order edges that have variables read when they are needed.
Edges LateReads(const GraphIndex& index);

// Order edges that have variables updated one after the other, as their gradients come: work that
// is for one update alone begins when the one before is done. What it reads (an optimizer's state)
// and makes (a gradient's squares) is then there for one variable at a time.
Edges UpdatesInTurn(const GraphIndex& index);

}  // namespace tfswap

#endif  // TFSWAP_CC_GRAPPLER_INDEX_VARIABLE_READS_H_
