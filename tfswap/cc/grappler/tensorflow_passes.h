#ifndef TFSWAP_CC_GRAPPLER_TENSORFLOW_PASSES_H_
#define TFSWAP_CC_GRAPPLER_TENSORFLOW_PASSES_H_

#include "absl/status/statusor.h"
#include "tensorflow/core/framework/graph.pb.h"
#include "tensorflow/core/grappler/clusters/cluster.h"
#include "tensorflow/core/grappler/grappler_item.h"
#include "tensorflow/core/protobuf/config.pb.h"

namespace tfswap {

// TensorFlow optimizes a traced function again for each plan. Only tfswap's rewrite differs then,
// and TensorFlow's own passes would take seconds to make the same graph. So the pushed config makes
// tfswap the only optimizer, and tfswap runs TensorFlow's passes through this cache.

// Run TensorFlow's own passes on an item and on the functions that it calls, or return what they
// made of an equal item under equal options before.
absl::StatusOr<tensorflow::GraphDef> RunTensorFlowPasses(tensorflow::grappler::Cluster* cluster,
                                                         const tensorflow::grappler::GrapplerItem&,
                                                         const tensorflow::ConfigProto& config);

// Return whether a graph is the body of a function that `RunTensorFlowPasses` has optimized, as
// part of the graph that calls it.
bool IsOptimized(const tensorflow::GraphDef& graph);

// Release the memory of the cache.
void ForgetOptimizedGraphs();

}  // namespace tfswap

#endif  // TFSWAP_CC_GRAPPLER_TENSORFLOW_PASSES_H_
