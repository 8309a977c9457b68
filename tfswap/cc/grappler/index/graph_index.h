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

// Return the name of this output in the input list of a node.
std::string InputName(const std::string& node, int port);

// A read-only index of a graph: everything that the pass asks about it, computed once.
//
// Depth counts *milestones* (convolutions and matrix products; a loop counts as several) on the
// longest path to a node. It serves as a clock that needs neither sizes nor times. An edge from a
// smaller to a greater depth closes no cycle. What is computed from variables alone (a kernel's
// transpose, the product of two LoRA factors) has depth 0: it can run whenever it is needed.
//
// Context is the condition under which a node runs: its while loops and branches. A control edge
// from a dead node kills its target, so an edge may only be added to a node whose guards include
// those of the source.
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
  // Position in one possible execution order: by depth, then topological.
  int position(int n) const { return position_[n]; }
  // The nodes by position.
  const std::vector<int>& order() const { return order_; }
  // The `count`-th milestone before `n` on its longest path; -1 if there are fewer.
  int MilestoneBefore(int n, int count) const;
  // Return an op on the longest path to `n` that can start a swap-in for `n`: deeper than
  // `above_depth`, alive whenever `n` is, and the `count`-th milestone before `n` or the closest op
  // to that (an op inside a loop cannot start anything outside). An op that needs much memory
  // itself (see Unfolding) is not crossed. -1 if there is none.
  int TriggerBefore(int n, int count, int above_depth) const;
  // Return the last gateable op before `n` on its longest path if another gateable op lies between
  // it and position `above`; -1 otherwise.
  int NearTriggerBefore(int n, int above) const;

  int context(int n) const { return contexts_.context(n); }
  // All Enter nodes of the loop that the Enter node `n` leads into; empty for other nodes.
  const std::vector<int>& EntriesBeside(int n) const { return loops_.EntriesBeside(n); }
  bool SameFrame(int a, int b) const { return loops_.frame(a) == loops_.frame(b); }
  // Return whether `a` runs whenever `b` does, and in the same iteration.
  bool AliveWith(int a, int b) const {
    return SameFrame(a, b) && contexts_.GuardsAreSubset(a, b) && !loops_.IsBetweenIterations(a);
  }

  tensorflow::DataType OutputType(TensorId tensor) const;
  int outputs(int n) const { return static_cast<int>(types_[n].size()); }

  // Return whether the op is on the managed device: the GPU if any op is placed on one, else the
  // CPU.
  bool IsManaged(int n) const { return managed_[n]; }
  bool ManagesGpu() const { return manages_gpu_; }
  // Return whether this output is in the memory of the managed device. (Shapes and the like of GPU
  // ops are in host memory.)
  bool InDeviceMemory(TensorId tensor) const;
  bool IsMilestone(int n) const;
  // Return whether a control edge may make this op wait for a swap-out or start a swap-in. Later
  // passes fuse some ops with their neighbours, which a control edge would prevent; those must stay
  // unchanged.
  bool IsGateable(int n) const;
  // Return whether this op may be made to start after another one. More ops qualify than for
  // IsGateable, because only their start time matters.
  bool IsOrderable(int n) const;
  // Return whether the op runs one after the other with others of its device (`Chain`): on a CPU
  // all that may, on a GPU the large ones.
  bool RunsInTurn(int n) const { return in_turn_[n] && !IsRacing(n); }
  // Return whether an edge of a plan (untrusted input) may make this op wait: not if that would
  // change the rounding of a sum, that is if the op races or oneDNN would no longer fuse it. The
  // exception are ops computed from variables alone, which the pass itself delays.
  bool MayWait(int n) const;
  // Return whether the op reads a variable, or computes something from variables and constants
  // alone, without side effects, before the first milestone.
  bool IsOfVariables(int n) const { return of_variables_[n]; }
  // Return whether output 0 always shares the buffer of input 0.
  bool IsAlias(int n) const;
  // Return whether the op is on a racing path (accumulation_races.h).
  bool IsRacing(int n) const { return racing_[n]; }
  // Let the nodes race that do in `other`, the same graph without some control edges: an edge may
  // put another op behind all addends of a sum.
  void AddRacesOf(const GraphIndex& other);
  // Return the index of the same graph as if all additions waited for each other in some order.
  GraphIndex WithoutRaces() const;
  // The op that oneDNN's layout pass fuses with this one as long as both read the same tensor: the
  // gradients of a convolution's weights and bias. -1 if there is none. The fused op rounds
  // differently, so no swap may come between the two. What reads one of them runs after both.
  int Twin(int n) const { return twin_[n]; }
  // Return an error if an op of a collective group waits for another one of the same group.
  // `groups` is that of collective_groups.h; nodes after its end are in no group.
  absl::Status CheckCollectiveGroups(const std::vector<int>& groups) const;
  // Return whether oneDNN's layout pass may fuse this op with a neighbour, which a control edge
  // into it would prevent, or the op takes no time.
  bool MayFuse(int n) const { return may_fuse_[n]; }
  bool IsBackward(int n) const { return parts_.backward[n]; }
  // Return whether this is a float32 activation that is not assigned to a variable. A lossy codec
  // may encode such a tensor for its readers in the backward part.
  bool IsActivation(TensorId tensor) const;
  // Return whether the op assigns a variable.
  bool IsUpdate(int n) const;
  // Return whether oneDNN's layout pass adds a workspace output that the gradient of this op reads.
  // It does so only if the gradient also reads the op's output. Without the workspace a pooling
  // gradient may select a different one of several equal maxima, which changes the rounding.
  bool HasWorkspace(int n) const;
  // Return whether the op will read only the shape of an input (pooling_gradients.h). It does not
  // count among the tensor's consumers then.
  bool ReadsShape(int n, int input) const;
  // Return whether the outputs of this op can be swapped: not if they are owned outside of the
  // step, if the op races, or if it has a workspace.
  bool IsSwappableProducer(int n) const;
  // Return whether running the op again gives the same result and has no side effect.
  bool IsRepeatable(int n) const { return repeatable_[n] && !IsRacing(n); }
  // Return whether a swapped-in tensor may replace an input of this op.
  bool IsRewirable(int n) const;

  bool Reads(int n, TensorId root) const;
  // Return the tensor that `tensor` is an alias of, or `tensor` itself.
  TensorId Root(TensorId tensor) const;

 private:
  const tensorflow::GraphDef* graph_ = nullptr;
  std::unordered_map<std::string, int> index_;
  std::vector<std::vector<TensorId>> inputs_;
  std::vector<std::vector<int>> control_inputs_;
  std::vector<std::vector<Consumer>> consumers_;
  std::vector<tensorflow::DataTypeVector> types_;
  std::vector<int> depth_;
  std::vector<int> level_;     // ops on the longest path; breaks ties between equal depths
  std::vector<int> critical_;  // the input on the longest path; -1 at its start
  bool manages_gpu_ = false;
  std::vector<int> position_;
  std::vector<int> order_;
  std::vector<bool> racing_;
  std::vector<bool> repeatable_;
  std::vector<bool> in_turn_;
  ForwardBackward parts_;
  std::vector<bool> managed_;
  std::vector<std::vector<bool>> in_host_memory_;  // by node and output; empty: no output is
  std::vector<int> twin_;
  std::vector<bool> may_fuse_;
  std::vector<bool> of_variables_;
  LoopFrames loops_;
  AliveContexts contexts_;

  absl::Status ReadNodes(const tensorflow::FunctionLibraryDefinition& functions);
  // Call `visit` with each node that must end before `n` starts: inputs, with their twins.
  template <typename F>
  void ForEachBefore(int n, const F& visit) const;
  // `merged` maps each node to its representative.
  absl::StatusOr<std::vector<int>> TopologicalOrder(const std::vector<int>* merged = nullptr) const;
  // Return the names on a cycle; `pending` is positive for nodes on a cycle or after one.
  std::string CycleIn(const std::vector<std::vector<int>>& successors,
                      const std::vector<int>& pending) const;
  bool IsComputedFromVariables(int n, const tensorflow::FunctionLibraryDefinition& functions) const;
  // Measure depths, and find what is computed from variables alone.
  void MeasureDepth(const std::vector<int>& order,
                    const tensorflow::FunctionLibraryDefinition& functions);
  void FindDevices();
  bool IsOnGpu(int n) const;
  void FindFusions();
  void FindRepeatable(const tensorflow::FunctionLibraryDefinition& functions);
  void FindOpsInTurn(const tensorflow::FunctionLibraryDefinition& functions);
};

// Limit on the nodes of a rewritten graph, because plans are untrusted input.
inline size_t MaxNodes(int given) { return 16 * static_cast<size_t>(given) + 1024; }

}  // namespace tfswap

#endif  // TFSWAP_CC_GRAPPLER_INDEX_GRAPH_INDEX_H_
