#ifndef TFSWAP_CC_GRAPPLER_REWRITE_LARGE_CONSTANTS_H_
#define TFSWAP_CC_GRAPPLER_REWRITE_LARGE_CONSTANTS_H_

#include "tensorflow/core/framework/graph.pb.h"

namespace tfswap {

// The graph with a Fill for each large constant that is one number many times, such as the zeros
// that Grappler's memory optimizer has sums begin with, and with fills, tiles and broadcasts that
// TensorFlow does not make constants of when it instantiates the function. A constant holds its
// memory for as long as its function is kept, once for each time that the function was optimised;
// what a Fill makes is there while somebody reads it.
tensorflow::GraphDef WithoutLargeConstants(const tensorflow::GraphDef& graph);

}  // namespace tfswap

#endif  // TFSWAP_CC_GRAPPLER_REWRITE_LARGE_CONSTANTS_H_
