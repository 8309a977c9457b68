#ifndef TFSWAP_CC_GRAPPLER_INDEX_FINGERPRINT_H_
#define TFSWAP_CC_GRAPPLER_INDEX_FINGERPRINT_H_

#include <string>

#include "tensorflow/core/framework/graph.pb.h"

namespace tfswap {

// A stable name for a graph: equal graphs have equal fingerprints, in every process.
std::string Fingerprint(const tensorflow::GraphDef& graph);

// Likewise, and the same for a function as it was traced and as it comes back from a SavedModel:
// without the names of calls that were inlined, of arguments, and control edges.
std::string PortableFingerprint(const tensorflow::GraphDef& graph);

}  // namespace tfswap

#endif  // TFSWAP_CC_GRAPPLER_INDEX_FINGERPRINT_H_
