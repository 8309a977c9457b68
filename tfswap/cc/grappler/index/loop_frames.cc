#include "grappler/index/loop_frames.h"

#include <map>

#include "grappler/index/graph_index.h"
#include "tensorflow/core/grappler/utils/frame.h"

namespace tfswap {

using ::tensorflow::NodeDef;

namespace {

bool IsEnter(const NodeDef& node) { return node.op() == "Enter" || node.op() == "RefEnter"; }

bool IsNextIteration(const NodeDef& node) {
  return node.op() == "NextIteration" || node.op() == "RefNextIteration";
}

}  // namespace

bool IsBackEdge(const NodeDef& from, const NodeDef& to) {
  return IsNextIteration(from) && (to.op() == "Merge" || to.op() == "RefMerge");
}

bool IsExit(const NodeDef& node) { return node.op() == "Exit" || node.op() == "RefExit"; }

absl::StatusOr<LoopFrames> LoopFrames::Find(const GraphIndex& index) {
  tensorflow::grappler::FrameView view;
  if (absl::Status status = view.InferFromGraph(index.graph()); !status.ok()) return status;
  LoopFrames frames;
  std::map<std::vector<int>, int> ids;
  frames.frame_.resize(index.size());
  frames.depth_.resize(index.size());
  frames.is_exit_.resize(index.size());
  frames.between_.resize(index.size());
  for (int n = 0; n < index.size(); ++n) {
    const std::vector<int>& around = view.Frames(index.node(n));
    frames.frame_[n] = ids.try_emplace(around, ids.size()).first->second;
    frames.depth_[n] = around.size();
    frames.is_exit_[n] = IsExit(index.node(n));
    frames.between_[n] = IsEnter(index.node(n)) || IsNextIteration(index.node(n));
  }
  // An Enter is outside of its loop, its readers are inside.
  frames.entries_.resize(ids.size());
  frames.leads_into_.assign(index.size(), -1);
  for (int n = 0; n < index.size(); ++n) {
    if (!IsEnter(index.node(n))) continue;
    if (index.consumers(n).empty()) continue;
    frames.leads_into_[n] = frames.frame_[index.consumers(n)[0].node];
    frames.entries_[frames.leads_into_[n]].push_back(n);
  }
  return frames;
}

}  // namespace tfswap
