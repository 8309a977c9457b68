#ifndef TFSWAP_CC_GRAPPLER_REWRITE_LARGE_CONSTANTS_H_
#define TFSWAP_CC_GRAPPLER_REWRITE_LARGE_CONSTANTS_H_

#include "tensorflow/core/framework/graph.pb.h"

namespace tfswap {

// Return the graph with a Fill for each large constant that repeats one number (such as the zeros
// with which Grappler's memory optimizer starts sums), and with shapes hidden from constant folding
// so that TensorFlow does not fold large fills, tiles and broadcasts when it instantiates the
// function. A constant holds its memory as long as its function exists, once per optimized copy;
// the output of a Fill is freed after its last reader.
tensorflow::GraphDef WithoutLargeConstants(const tensorflow::GraphDef& graph);

}  // namespace tfswap

#endif  // TFSWAP_CC_GRAPPLER_REWRITE_LARGE_CONSTANTS_H_
