#ifndef TFSWAP_CC_GRAPPLER_INDEX_GRAPH_INDEX_H_
#define TFSWAP_CC_GRAPPLER_INDEX_GRAPH_INDEX_H_

#include <string>
#include <unordered_map>
#include <vector>

#include "absl/status/statusor.h"
#include "grappler/index/activations.h"
#include "grappler/index/alive_contexts.h"
#include "grappler/index/loop_frames.h"
#include "tensorflow/core/framework/function.h"
#include "tensorflow/core/framework/graph.pb.h"
#include "tensorflow/core/framework/types.h"

namespace tfswap {

// One data output of a node.
struct TensorId {
  int node = -1;
  int port = 0;
  bool operator==(const TensorId& other) const { return node == other.node && port == other.port; }
};

// As a node's input names it.
std::string InputName(const std::string& node, int port);

// Everything that the pass asks of a graph, found once.
//
// Depth counts *milestones* (convolutions, matrix products, several for a loop) on the longest way
// to a node: it is a clock that needs neither sizes nor times. An edge from a smaller depth to a
// greater one can close no cycle.
//
// Context says when a node is alive: its while-loop frames and the branches that it hangs on.
// A control edge from a dead node kills its target, so an edge may only join a node whose
// guards are among the target's.
class GraphIndex {
 public:
  static absl::StatusOr<GraphIndex> Build(const tensorflow::GraphDef& graph,
                                          const tensorflow::FunctionLibraryDefinition& functions);

  struct Consumer {
    int node;
    int input;
    int port;
  };

  int size() const { return static_cast<int>(inputs_.size()); }
  const tensorflow::GraphDef& graph() const { return *graph_; }
  const tensorflow::NodeDef& node(int n) const { return graph_->node(n); }
  int Find(absl::string_view name) const;

  const std::vector<TensorId>& inputs(int n) const { return inputs_[n]; }  // data inputs, in order
  const std::vector<int>& control_inputs(int n) const { return control_inputs_[n]; }
  const std::vector<Consumer>& consumers(int n) const { return consumers_[n]; }

  int depth(int n) const { return depth_[n]; }
  // Place in an order that the executor could have taken: by depth, then topologically.
  int position(int n) const { return position_[n]; }
  // The `count`-th milestone before `n` on its longest way; -1 if there are fewer.
  int MilestoneBefore(int n, int count) const;
  // An op on that way, deeper than `above_depth` and alive with `n`, to start a swap-in for it: the
  // `count`-th milestone before `n`, or as near to it as there is one (what is inside of a loop can
  // start nothing outside); nearer to `n`, an op that needs all room for itself. -1 if there is
  // none.
  int TriggerBefore(int n, int count, int above_depth) const;
  // The gateable op nearest before `n` on its longest way, if there is another one between it and
  // position `above`; -1 otherwise.
  int NearTriggerBefore(int n, int above) const;

  int context(int n) const { return contexts_.context(n); }
  bool SameFrame(int a, int b) const { return loops_.frame(a) == loops_.frame(b); }
  // Is `a` alive whenever `b` is?
  bool AliveWith(int a, int b) const { return SameFrame(a, b) && contexts_.GuardsAreAmong(a, b); }

  tensorflow::DataType OutputType(TensorId tensor) const;
  int outputs(int n) const { return static_cast<int>(types_[n].size()); }

  // Is it on the device that is managed: a GPU if any op is on one, else the CPU?
  bool IsManaged(int n) const { return managed_[n]; }
  // Is that a GPU?
  bool ManagesCard() const { return manages_gpu_; }
  // Is this output in that device's memory? (On a GPU, shapes and the like are in the host's.)
  bool InDeviceMemory(TensorId tensor) const;
  bool IsMilestone(int n) const;
  // May this op be made to wait for a swap-out, or start a swap-in? Later passes fuse some ops with
  // their neighbours, and would not with a control edge there: those must stay as they are.
  bool IsGateable(int n) const;
  // May this op be made to start behind any other one? More may than are gateable: nothing but time
  // is asked of it.
  bool IsOrderable(int n) const;
  // May a plan, which may come from anywhere, have this op wait? Not where a sum would be rounded
  // otherwise: if it races, or oneDNN would no longer fuse it. What is computed from variables
  // alone the pass itself has wait.
  bool MayWait(int n) const;
  // Does output 0 share the buffer of input 0, always?
  bool IsAlias(int n) const;
  // Is it on a way that must stay as fast as others (accumulation_races.h)?
  bool IsRacing(int n) const { return racing_[n]; }
  // The op that oneDNN's layout pass makes one of with this one, as long as both read the same
  // tensor: a convolution's gradient of the weights with that of the bias. -1 if there is none. Two
  // ops instead of one round otherwise, so no swap may come between the two.
  int Twin(int n) const { return twin_[n]; }
  // Whether there is still no cycle once that is done: nothing may lie between the two.
  absl::Status CheckTwins() const;
  // Whether none of the ops that meet (meetings.h) waits for another one: each meeting is as one
  // node. What is behind the list's end meets nobody.
  absl::Status CheckCollectiveGroups(const std::vector<int>& meetings) const;
  // May oneDNN's layout pass make one op of this one and a neighbour? With a control edge into it,
  // it would not.
  bool MayFuse(int n) const { return may_fuse_[n]; }
  // Is it a gradient, or computed from one?
  bool IsBackward(int n) const { return parts_.backward[n]; }
  // Is this a float32 activation that no variable gets? Of those, a lossy codec may keep what only
  // the backward part reads again.
  bool IsActivation(TensorId tensor) const;
  // Whether it gives a variable a new value.
  bool IsUpdate(int n) const;
  // Does oneDNN's layout pass give this op a workspace that its gradient reads? Only while the
  // gradient reads its output, too; without one, a pooling's gradient may choose another one of
  // several equal largest values, and rounds otherwise.
  bool HasWorkspace(int n) const;
  // Can the outputs of this op be swapped at all? Not if somebody outside of the step holds them,
  // if it races, or has a workspace.
  bool IsSwappableProducer(int n) const;
  // Would it make the same again from the same inputs, and do nothing else?
  bool IsRepeatable(int n) const { return repeatable_[n]; }
  // May an input of this op be replaced by a swapped-in tensor?
  bool IsRewirable(int n) const;

  // Does an input of `n` have that root?
  bool Reads(int n, TensorId root) const;
  // The tensor that `tensor` is an alias of, itself if it is none.
  TensorId Root(TensorId tensor) const;

 private:
  const tensorflow::GraphDef* graph_ = nullptr;
  std::unordered_map<std::string, int> index_;
  std::vector<std::vector<TensorId>> inputs_;
  std::vector<std::vector<int>> control_inputs_;
  std::vector<std::vector<Consumer>> consumers_;
  std::vector<tensorflow::DataTypeVector> types_;
  std::vector<int> depth_;
  std::vector<int> level_;     // ops on the longest way: among equal depths, the longer way counts
  std::vector<int> critical_;  // the input on the longest way, -1 at its start
  bool manages_gpu_ = false;
  std::vector<int> position_;
  std::vector<bool> racing_;
  std::vector<bool> repeatable_;
  Parts parts_;
  std::vector<bool> managed_;
  std::vector<std::vector<bool>> in_host_memory_;  // by node and output; empty: none is
  std::vector<int> twin_;
  std::vector<bool> may_fuse_;
  std::vector<bool> of_variables_;  // computed from them alone, before the first milestone
  LoopFrames loops_;
  AliveContexts contexts_;

  absl::Status ReadNodes(const tensorflow::FunctionLibraryDefinition& functions);
  // With `merged`, by node the one that stands for it; `as_one`: edges between nodes for which the
  // same one stands are none.
  absl::StatusOr<std::vector<int>> TopologicalOrder(const std::vector<int>* merged = nullptr,
                                                    bool as_one = false) const;
  // Says which: `pending` is not 0 for what is on a cycle, or behind one.
  std::string CycleIn(const std::vector<std::vector<int>>& successors,
                      const std::vector<int>& pending) const;
  void MeasureDepth(const std::vector<int>& order);
  void FindDevices();
  void FindOfVariables(const std::vector<int>& order);
  void FindFusions();
  void FindRepeatable(const tensorflow::FunctionLibraryDefinition& functions);
};

// How many nodes may become of a graph under a plan, which may come from anywhere.
inline size_t MostNodes(int given) { return 16 * static_cast<size_t>(given) + 1024; }

}  // namespace tfswap

#endif  // TFSWAP_CC_GRAPPLER_INDEX_GRAPH_INDEX_H_
