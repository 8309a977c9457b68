// Scheduling of variable reads for variables whose values are swapped
// (kernels/streamed_variables.h).
//
// The output of a ReadVariableOp shares the memory of the value and keeps it on the device until
// its last reader has run. By default the executor reads all variables at the start of the step.

#ifndef TFSWAP_CC_GRAPPLER_INDEX_VARIABLE_READS_H_
#define TFSWAP_CC_GRAPPLER_INDEX_VARIABLE_READS_H_

#include "grappler/index/graph_index.h"
#include "grappler/rewrite/order_edges.h"
#include "tensorflow/core/framework/graph.pb.h"

namespace tfswap {

// Return the graph with separate variable reads for the backward part, and with separate ops that
// compute something from variables alone (a kernel's transpose or cast, a weight plus its LoRA
// product), so that neither values nor results stay on the device in between.
tensorflow::GraphDef WithBackwardWeights(const GraphIndex& index,
                                         const tensorflow::GraphDef& graph);

// Return order edges that delay variable reads until they are needed.
Edges LateReads(const GraphIndex& index);

// Return order edges that delay each variable read to right before the first op of the chain that
// waits for it, directly or through ops outside of the chain.
Edges ReadsInTurn(const GraphIndex& index, const Edges& chain);

}  // namespace tfswap

#endif  // TFSWAP_CC_GRAPPLER_INDEX_VARIABLE_READS_H_
