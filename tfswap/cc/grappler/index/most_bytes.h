#ifndef TFSWAP_CC_GRAPPLER_INDEX_MOST_BYTES_H_
#define TFSWAP_CC_GRAPPLER_INDEX_MOST_BYTES_H_

#include <cstdint>

#include "grappler/index/graph_index.h"
#include "tensorflow/core/grappler/grappler_item.h"

namespace tfswap {

// Return the most bytes that a step of this graph can have allocated at once on the managed device,
// whatever the order of its ops, besides what is there before the step and workspaces. -1 if it is
// unknown: shapes are unknown, or there are loops, calls or lists of tensors.
//
// Ops that only one op reads are a tree: either that op has run, and its output is there, or the
// trees of its inputs are. What several ops read counts as if it stayed. So this is several times
// the peak of a real step (ResNet50 with AdamW: 4.5 times).
//
// `index` is of the item's graph. `examples` is the most that a batch can have whose size is not
// known before the step; 0: unknown.
int64_t MostBytes(const tensorflow::grappler::GrapplerItem& item, const GraphIndex& index,
                  int64_t examples);

}  // namespace tfswap

#endif  // TFSWAP_CC_GRAPPLER_INDEX_MOST_BYTES_H_
