#ifndef TFSWAP_CC_GRAPPLER_REWRITE_VARIABLE_ROWS_H_
#define TFSWAP_CC_GRAPPLER_REWRITE_VARIABLE_ROWS_H_

#include "tensorflow/core/framework/graph.pb.h"

namespace tfswap {

// Return the graph with a _GatherVariableRows for each ResourceGather on a CPU, and for each
// GatherV2 of rows from a ReadVariableOp that serves nothing else, so that the whole value (an
// embedding table) is not read.
tensorflow::GraphDef WithRowReads(const tensorflow::GraphDef& graph);

}  // namespace tfswap

#endif  // TFSWAP_CC_GRAPPLER_REWRITE_VARIABLE_ROWS_H_
