#ifndef TFSWAP_CC_GRAPPLER_INDEX_OP_COSTS_H_
#define TFSWAP_CC_GRAPPLER_INDEX_OP_COSTS_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tensorflow/core/framework/graph.pb.h"

namespace tfswap {

// What a device reaches. Grappler's own table of processors knows none that is newer than Volta and
// takes one number for all of a GPU's units, so these come from outside
// (tfswap/machine/presets.json).
struct DeviceSpeed {
  double ops_per_s = 0;          // elementwise work and reductions
  double product_ops_per_s = 0;  // convolutions and matrix products; a multiply-add is two
  double bytes_per_s = 0;        // the device's own memory
};

// The graph of a training step as it would run, with what each op costs: nothing is run.
//
// The graph goes through the passes of Grappler that TensorFlow gives every function but two: one
// changes layouts, the other fuses ops of one device; neither changes which activations are kept.
// Shapes are inferred, times come from Grappler's OpLevelCostEstimator (computing and moving
// memory overlap, as they do on a GPU). Convolutions' workspace is not known.
//
// `kept` names the ops that must stay: outputs, and those that only act.
//
// Answers lines "name  ns  bytes..." (the sizes of the outputs, -1 where a shape is not known), an
// empty line, then `Describe` of the graph with the order edges of the pass.
absl::StatusOr<std::string> EstimateStep(tensorflow::GraphDef graph,
                                         const std::vector<std::string>& kept,
                                         const DeviceSpeed& speed);

}  // namespace tfswap

#endif  // TFSWAP_CC_GRAPPLER_INDEX_OP_COSTS_H_
