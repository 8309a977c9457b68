// What is an activation of a model's forward part, and what belongs to its backward part.
//
// An activation is computed from the batch *and* from variables, before any gradient:
//
//     batch ──▶ augment ──▶ conv ─▶ act ─▶ loss ─▶ gradient ─▶ ... ─▶ update
//                            ▲        │                ▲
//     variable ─▶ transpose ─┘        └────────────────┘
//              (weights)        (activations)       (backward)
//
// So weights and all that is made of them alone are none, nor are labels, inputs, and masks of
// random numbers. What cannot be told is no activation.

#ifndef TFSWAP_CC_GRAPPLER_INDEX_ACTIVATIONS_H_
#define TFSWAP_CC_GRAPPLER_INDEX_ACTIVATIONS_H_

#include <vector>

namespace tfswap {

class GraphIndex;

// By node. Gradients are told by their type, by the scope that TensorFlow's tape gives them, and by
// what they are computed from.
struct Parts {
  std::vector<bool> forward;   // float32 outputs of it are activations
  std::vector<bool> backward;  // it is, or is computed from, a gradient
};

// Needs only the index's inputs, positions and types.
Parts FindParts(const GraphIndex& index);

}  // namespace tfswap

#endif  // TFSWAP_CC_GRAPPLER_INDEX_ACTIVATIONS_H_
