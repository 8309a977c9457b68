#ifndef TFSWAP_CC_GRAPPLER_REWRITE_REWRITER_H_
#define TFSWAP_CC_GRAPPLER_REWRITE_REWRITER_H_

#include <vector>

#include "grappler/index/graph_index.h"
#include "grappler/swap_spec.h"

namespace tfswap {

// Prefix of every node that the pass makes.
inline constexpr char kNodePrefix[] = "tfswap/";

bool IsRewritten(const tensorflow::GraphDef& graph);

// Executes swaps on a copy of the graph that `index` describes:
//
//   tensor ──▶ _CopyToHost ──handle──▶ _CopyFromHost ──▶ consumers
//                   ┊                        ▲
//                   └┄┄▶ gate      trigger ┄┄┘            (┄ control edges)
//
// A consumer that reads the tensor through aliases (reshapes and the like) gets clones of those
// behind the swap-in. Answers the new graph, or why it may not be; decides nothing itself.
absl::StatusOr<tensorflow::GraphDef> Rewrite(
    const tensorflow::GraphDef& graph, const GraphIndex& index, const std::vector<SwapSpec>& swaps,
    const std::vector<std::pair<std::string, std::string>>& order, int64_t min_bytes);

}  // namespace tfswap

#endif  // TFSWAP_CC_GRAPPLER_REWRITE_REWRITER_H_
