#ifndef TFSWAP_CC_GRAPPLER_REWRITE_RECOMPUTES_H_
#define TFSWAP_CC_GRAPPLER_REWRITE_RECOMPUTES_H_

#include <vector>

#include "absl/status/statusor.h"
#include "grappler/swap_spec.h"
#include "tensorflow/core/framework/function.h"

namespace tfswap {

// Return the graph in which tensors are recomputed instead of kept (rematerialization):
//
//   X ──▶ A ──▶ T ──▶ early reader          X ──▶ A ──▶ T ──▶ early reader
//               └───▶ late reader     ──▶   └───▶ A/again/0 ──▶ T/again/0 ──▶ late reader
//                                       trigger ──^
//
// Nodes are cloned in the order of the specs; a spec may name clones of earlier specs. Returns an
// error if an op may not give the same result again, or if an op would not run when it has to.
absl::StatusOr<tensorflow::GraphDef> WithRecomputes(
    const tensorflow::GraphDef& graph, const tensorflow::FunctionLibraryDefinition& functions,
    const std::vector<RecomputeSpec>& specs);

}  // namespace tfswap

#endif  // TFSWAP_CC_GRAPPLER_REWRITE_RECOMPUTES_H_
