#ifndef TFSWAP_CC_GRAPPLER_INDEX_OP_COSTS_H_
#define TFSWAP_CC_GRAPPLER_INDEX_OP_COSTS_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tensorflow/core/framework/graph.pb.h"

namespace tfswap {

// Peak speeds of a device. Grappler's own table stops at Volta and has one number for all units of
// a GPU, so the caller provides them (tfswap/machine/presets.json).
struct DeviceSpeed {
  double ops_per_s = 0;          // elementwise work and reductions
  double product_ops_per_s = 0;  // convolutions and matrix products; a multiply-add counts as two
  double bytes_per_s = 0;        // the device's own memory
};

// Estimate the cost of each op of a training step without running it.
//
// Runs the Grappler passes that TensorFlow applies to every function, except for the layout pass
// and the fusion of ops per device; neither changes which activations are kept. Infers the shapes
// and estimates times with Grappler's OpLevelCostEstimator (compute and memory traffic overlap, as
// on a GPU). The workspaces of convolutions are unknown.
//
// `kept` names the ops that must stay: outputs and ops with side effects.
//
// Returns lines "name  ns  bytes..." (the sizes of the outputs, -1 for an unknown shape), an empty
// line, then `Describe` of the graph with the order edges of the pass.
absl::StatusOr<std::string> EstimateStep(tensorflow::GraphDef graph,
                                         const std::vector<std::string>& kept,
                                         const DeviceSpeed& speed);

}  // namespace tfswap

#endif  // TFSWAP_CC_GRAPPLER_INDEX_OP_COSTS_H_
