#ifndef TFSWAP_CC_GRAPPLER_REWRITE_LOOP_LISTS_H_
#define TFSWAP_CC_GRAPPLER_REWRITE_LOOP_LISTS_H_

#include "grappler/index/graph_index.h"

namespace tfswap {

// Return the graph with TensorLists whose elements may leave a CPU: what a while loop keeps for its
// gradient, the steps of the sequence that it reads, and its outputs.
//
// Such a list holds handles instead of tensors:
//
//   forward loop:    x ──▶ _ElementToHost ──▶ TensorListPushBack
//   backward loop:   TensorListPopBack ──▶ _CopyFromHost ──▶ readers of x
//   around them:     sequence ──▶ _RowsToHost ──▶ TensorListFromTensor
//                    TensorListStack ──▶ _StackFromHost ──▶ sequence
//
// Elements are evicted on demand: those first that the step needs last. Lists of which some use is
// not known (functions, results, lists in lists) keep their tensors.
tensorflow::GraphDef WithMovableLists(const GraphIndex& index);

// Return the graph with recurrent loops that run at most two iterations at once, as those with such
// lists do.
tensorflow::GraphDef WithFewIterations(const GraphIndex& index);

// Return whether there are lists at all.
bool HasLists(const tensorflow::GraphDef& graph);

}  // namespace tfswap

#endif  // TFSWAP_CC_GRAPPLER_REWRITE_LOOP_LISTS_H_
