#ifndef TFSWAP_CC_GRAPPLER_INDEX_LOOP_FRAMES_H_
#define TFSWAP_CC_GRAPPLER_INDEX_LOOP_FRAMES_H_

#include <vector>

#include "absl/status/statusor.h"
#include "tensorflow/core/framework/node_def.pb.h"

namespace tfswap {

class GraphIndex;

// The edge from a loop's end to its beginning.
bool IsBackEdge(const tensorflow::NodeDef& from, const tensorflow::NodeDef& to);
bool IsExit(const tensorflow::NodeDef& node);

// Which while-loops are around each node of a graph.
class LoopFrames {
 public:
  // Needs only the index's nodes and consumers.
  static absl::StatusOr<LoopFrames> Find(const GraphIndex& index);

  // Nodes inside of the same loops have the same.
  int frame(int n) const { return frame_[n]; }
  // How many loops are around it.
  int depth(int n) const { return depth_[n]; }
  // What enters the loop that `n` is an exit of: a loop ends after all that it needs, though no
  // edge says so once its back edges are left out. Empty for other nodes.
  const std::vector<int>& EntriesOf(int n) const {
    return is_exit_[n] ? entries_[frame_[n]] : none_;
  }

 private:
  std::vector<int> frame_;
  std::vector<int> depth_;
  std::vector<bool> is_exit_;
  std::vector<std::vector<int>> entries_;  // by frame: the Enter nodes that lead into it
  std::vector<int> none_;
};

}  // namespace tfswap

#endif  // TFSWAP_CC_GRAPPLER_INDEX_LOOP_FRAMES_H_
