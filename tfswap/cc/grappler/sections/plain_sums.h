#ifndef TFSWAP_CC_GRAPPLER_SECTIONS_PLAIN_SUMS_H_
#define TFSWAP_CC_GRAPPLER_SECTIONS_PLAIN_SUMS_H_

#include "tensorflow/core/framework/graph.pb.h"

namespace tfswap {

// The graph with one AddN again for each that Grappler's memory optimizer has made into additions
// to a temporary variable. Such a variable is there as a whole, and what is added to it is added in
// the order in which it is ready.
tensorflow::GraphDef WithPlainSums(const tensorflow::GraphDef& graph);

}  // namespace tfswap

#endif  // TFSWAP_CC_GRAPPLER_SECTIONS_PLAIN_SUMS_H_
