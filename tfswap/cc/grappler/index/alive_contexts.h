#ifndef TFSWAP_CC_GRAPPLER_INDEX_ALIVE_CONTEXTS_H_
#define TFSWAP_CC_GRAPPLER_INDEX_ALIVE_CONTEXTS_H_

#include <vector>

#include "grappler/index/loop_frames.h"

namespace tfswap {

class GraphIndex;

// When each node of a graph is alive: its while-loop frames, and its guards, which are the branches
// that it hangs on.
class AliveContexts {
 public:
  AliveContexts() = default;
  // Needs only the index's nodes and inputs; `order` is topological.
  AliveContexts(const GraphIndex& index, const LoopFrames& loops, const std::vector<int>& order);

  // Nodes of the same frames and guards have the same.
  int context(int n) const { return context_[n]; }
  // Does `b` hang on all branches that `a` hangs on?
  bool GuardsAreAmong(int a, int b) const;

 private:
  std::vector<int> context_;
  std::vector<std::vector<int>> guards_;  // by context
};

}  // namespace tfswap

#endif  // TFSWAP_CC_GRAPPLER_INDEX_ALIVE_CONTEXTS_H_
