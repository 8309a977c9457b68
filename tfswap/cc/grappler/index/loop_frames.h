#ifndef TFSWAP_CC_GRAPPLER_INDEX_LOOP_FRAMES_H_
#define TFSWAP_CC_GRAPPLER_INDEX_LOOP_FRAMES_H_

#include <vector>

#include "absl/status/statusor.h"
#include "tensorflow/core/framework/node_def.pb.h"

namespace tfswap {

class GraphIndex;

// Return whether this is the edge from the end of a loop's body to its start.
bool IsBackEdge(const tensorflow::NodeDef& from, const tensorflow::NodeDef& to);
bool IsExit(const tensorflow::NodeDef& node);

// The while loops that contain each node of a graph.
class LoopFrames {
 public:
  // Uses only the nodes and consumers of the index.
  static absl::StatusOr<LoopFrames> Find(const GraphIndex& index);

  // Nodes inside of the same loops have the same frame.
  int frame(int n) const { return frame_[n]; }
  // The number of loops that contain the node.
  int depth(int n) const { return depth_[n]; }
  // The Enter nodes of the loop that `n` is an exit of; empty for other nodes. A loop ends after
  // all that it needs, but no path shows this once its back edges are left out.
  const std::vector<int>& EntriesOf(int n) const {
    return is_exit_[n] ? entries_[frame_[n]] : none_;
  }
  // Return whether control edges from `n` reach only one iteration of a loop, or the next one.
  bool IsBetweenIterations(int n) const { return between_[n]; }
  // All Enter nodes of the loop that the Enter node `n` leads into; empty for other nodes.
  const std::vector<int>& EntriesBeside(int n) const {
    return leads_into_[n] >= 0 ? entries_[leads_into_[n]] : none_;
  }

 private:
  std::vector<int> frame_;
  std::vector<int> depth_;
  std::vector<bool> is_exit_;
  std::vector<bool> between_;              // by node: whether it is Enter or NextIteration
  std::vector<int> leads_into_;            // by node: a frame; -1 if it is no Enter node
  std::vector<std::vector<int>> entries_;  // by frame: the Enter nodes that lead into it
  std::vector<int> none_;
};

}  // namespace tfswap

#endif  // TFSWAP_CC_GRAPPLER_INDEX_LOOP_FRAMES_H_
