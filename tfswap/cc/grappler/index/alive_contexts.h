#ifndef TFSWAP_CC_GRAPPLER_INDEX_ALIVE_CONTEXTS_H_
#define TFSWAP_CC_GRAPPLER_INDEX_ALIVE_CONTEXTS_H_

#include <vector>

#include "grappler/index/loop_frames.h"

namespace tfswap {

class GraphIndex;

// The conditions under which each node runs: the while loops that contain it and its guards, the
// branches of conditionals that it depends on.
class AliveContexts {
 public:
  AliveContexts() = default;
  // Uses only the nodes and inputs of the index; `order` is topological.
  AliveContexts(const GraphIndex& index, const LoopFrames& loops, const std::vector<int>& order);

  // Nodes with the same frames and guards have the same context.
  int context(int n) const { return context_[n]; }
  // Return whether `b` depends on all branches that `a` depends on.
  bool GuardsAreSubset(int a, int b) const;

 private:
  std::vector<int> context_;
  std::vector<std::vector<int>> guards_;  // by context
};

}  // namespace tfswap

#endif  // TFSWAP_CC_GRAPPLER_INDEX_ALIVE_CONTEXTS_H_
