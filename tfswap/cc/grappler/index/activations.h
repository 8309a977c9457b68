// Classify the ops of a training graph into forward and backward part.
//
// An activation is computed from the batch *and* from variables, before any gradient:
//
//     batch ──▶ augment ──▶ conv ─▶ act ─▶ loss ─▶ gradient ─▶ ... ─▶ update
//                            ▲        │                ▲
//     variable ─▶ transpose ─┘        └────────────────┘
//              (weights)        (activations)       (backward)
//
// Weights and values computed from weights alone are not activations; neither are labels, inputs
// and random masks. An op that cannot be classified counts as no activation.

#ifndef TFSWAP_CC_GRAPPLER_INDEX_ACTIVATIONS_H_
#define TFSWAP_CC_GRAPPLER_INDEX_ACTIVATIONS_H_

#include <vector>

namespace tfswap {

class GraphIndex;

// Both by node. A gradient is recognised by its op type, by the name scope of TensorFlow's gradient
// tape, or by its inputs.
struct ForwardBackward {
  std::vector<bool> forward;   // its float32 outputs are activations
  std::vector<bool> backward;  // a gradient, or computed from one
};

// Uses only the inputs, positions and types of the index.
ForwardBackward FindForwardBackward(const GraphIndex& index);

}  // namespace tfswap

#endif  // TFSWAP_CC_GRAPPLER_INDEX_ACTIVATIONS_H_
