#ifndef TFSWAP_CC_GRAPPLER_REWRITE_REWRITER_H_
#define TFSWAP_CC_GRAPPLER_REWRITE_REWRITER_H_

#include <vector>

#include "grappler/index/graph_index.h"
#include "grappler/swap_spec.h"

namespace tfswap {

// Prefix of the names of all nodes that the pass adds.
inline constexpr char kNodePrefix[] = "tfswap/";

bool IsRewritten(const tensorflow::GraphDef& graph);

// Apply swaps and order edges to a copy of the graph that `index` describes:
//
//   tensor ──▶ _CopyToHost ──handle──▶ _CopyFromHost ──▶ consumers
//                   ┊                        ▲
//                   └┄┄▶ gate      trigger ┄┄┘            (┄ control edges)
//
// If a consumer reads the tensor through aliases (reshapes and the like), the aliases are cloned
// after the swap-in. Returns an error if the plan is invalid; makes no decision of its own.
absl::StatusOr<tensorflow::GraphDef> Rewrite(
    const tensorflow::GraphDef& graph, const GraphIndex& index, const std::vector<SwapSpec>& swaps,
    const std::vector<std::pair<std::string, std::string>>& order, int64_t min_bytes);

}  // namespace tfswap

#endif  // TFSWAP_CC_GRAPPLER_REWRITE_REWRITER_H_
