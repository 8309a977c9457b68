#ifndef TFSWAP_CC_GRAPPLER_INDEX_FINGERPRINT_H_
#define TFSWAP_CC_GRAPPLER_INDEX_FINGERPRINT_H_

#include <string>

#include "tensorflow/core/framework/graph.pb.h"

namespace tfswap {

// Return a hash of the graph that is the same in every process.
std::string Fingerprint(const tensorflow::GraphDef& graph);

// Return a hash that is the same for a function as it was traced and as a SavedModel restores it:
// names of inlined calls and arguments, and control edges, are left out.
std::string PortableFingerprint(const tensorflow::GraphDef& graph);

}  // namespace tfswap

#endif  // TFSWAP_CC_GRAPPLER_INDEX_FINGERPRINT_H_
