#ifndef TFSWAP_CC_GRAPPLER_INDEX_POOLING_GRADIENTS_H_
#define TFSWAP_CC_GRAPPLER_INDEX_POOLING_GRADIENTS_H_

#include "tensorflow/core/framework/node_def.pb.h"

namespace tfswap {

// The gradient of a maximum pooling reads the pooling's input and output. That of oneDNN does not:
// it reads a workspace, in which the pooling has recorded where the maxima were, and the shape of
// the input. TensorFlow's layout pass, which runs after tfswap's, makes an op of oneDNN of it if it
// reads the pooling's output directly. After that pass, another one of tfswap (read_shapes_pass.cc)
// lets it read shapes (_ShapeOnly) instead of the two tensors, so that they can leave:
//
//     x ──▶ MaxPool ──▶ y ──▶ ...              x ──▶ MaxPool ──▶ y ──▶ ...
//     x, y, dy ──▶ MaxPoolGrad ──▶ dx          shape of x, of y, dy, workspace ──▶ gradient ──▶ dx
//
// Where the layout pass does otherwise, the gradient keeps x and y on the device until it has run.

// Inputs 0 and 1 of a gradient are the input and the output of its pooling.
inline constexpr int kPoolingShapes = 2;

// Return whether the input of `gradient` will be a shape. `pooling`: what makes its input 1.
bool WillReadShape(const tensorflow::NodeDef& gradient, int input,
                   const tensorflow::NodeDef& pooling);

}  // namespace tfswap

#endif  // TFSWAP_CC_GRAPPLER_INDEX_POOLING_GRADIENTS_H_
