#ifndef TFSWAP_CC_GRAPPLER_SECTIONS_RESTORE_ADDN_H_
#define TFSWAP_CC_GRAPPLER_SECTIONS_RESTORE_ADDN_H_

#include "tensorflow/core/framework/graph.pb.h"

namespace tfswap {

// Return the graph with an AddN in place of each accumulation in a temporary variable into which
// Grappler's memory optimizer has rewritten it. Such a variable cannot be split into sections, and
// the order of its additions depends on timing.
tensorflow::GraphDef RestoreAddN(const tensorflow::GraphDef& graph);

}  // namespace tfswap

#endif  // TFSWAP_CC_GRAPPLER_SECTIONS_RESTORE_ADDN_H_
