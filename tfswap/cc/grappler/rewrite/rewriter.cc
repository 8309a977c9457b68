#include "grappler/rewrite/rewriter.h"

#include <algorithm>
#include <map>
#include <optional>
#include <unordered_map>
#include <unordered_set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "codecs/codec.h"
#include "grappler/index/collective_groups.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/graph/tensor_id.h"

namespace tfswap {

using ::tensorflow::GraphDef;
using ::tensorflow::NodeDef;

namespace {

class Rewriter {
 public:
  Rewriter(const GraphDef& graph, const GraphIndex& index, int64_t min_bytes)
      : index_(index), min_bytes_(min_bytes), result_(graph) {}

  absl::Status Apply(const SwapSpec& swap) {
    if (result_.node_size() + swap.returns.size() > MaxNodes(index_.size())) {
      return absl::InvalidArgumentError(absl::StrCat("the swaps of the plan grow a graph of ",
                                                     index_.size(), " nodes beyond the limit of ",
                                                     MaxNodes(index_.size())));
    }
    return swap.after.empty() ? ApplyToTensor(swap) : ApplyToVariable(swap);
  }
  absl::Status AddOrder(const std::string& before, const std::string& after);
  GraphDef Take() { return std::move(result_); }

 private:
  absl::Status ApplyToTensor(const SwapSpec& swap);
  absl::Status ApplyToVariable(const SwapSpec& swap);
  absl::StatusOr<int> Known(const std::string& name, const SwapSpec& swap) const;
  // Find a node that runs whenever `node` does, and the reverse.
  absl::StatusOr<int> Beside(int node, const std::string& name, const SwapSpec& swap) const;
  absl::Status CheckMayWait(int node) const;
  absl::Status CheckUsable(const SwapSpec& swap, int element_bytes) const;
  absl::Status CheckCodec(const SwapSpec& swap, TensorId root) const;
  absl::Status Rewire(const SwapSpec& swap, TensorId root, const std::string& consumer,
                      const std::string& returned, int ordinal);
  std::string Clone(TensorId alias, TensorId root, const std::string& returned, int ordinal);
  void AddControlInput(int to, const std::string& from);

  // A node of the result, and a node of the given graph that runs under the same condition; -1 if
  // there is none.
  struct Place {
    int node = -1;
    int alive_as = -1;
  };
  Place Find(const std::string& name) const;
  // Call this before the node is added.
  void Remember(const std::string& name, int alive_as) {
    copies_[name] = {result_.node_size(), alive_as};
  }

  const GraphIndex& index_;
  const int64_t min_bytes_;
  GraphDef result_;
  std::map<std::string, std::string> clones_;  // by name
  std::map<std::string, int> variable_swaps_;  // number of swaps by variable
  std::unordered_map<std::string, Place> copies_;
  std::unordered_map<std::string, std::vector<std::string>> on_demand_;  // copies out, by producer
  std::unordered_map<int, std::unordered_set<std::string>> control_inputs_;
};

absl::StatusOr<int> Rewriter::Known(const std::string& name, const SwapSpec& swap) const {
  const int node = index_.Find(name);
  if (node >= 0) return node;
  return absl::NotFoundError(absl::StrCat("the swap of '", swap.tensor, "' names '", name,
                                          "', which is not in the graph"));
}

// Plans are untrusted input: a lossy codec may change an activation that only the backward part
// reads again, and nothing else.
absl::Status Rewriter::CheckCodec(const SwapSpec& swap, TensorId root) const {
  const std::optional<Codec> codec = ParseCodec(swap.codec);
  if (!codec || !IsLossy(*codec)) {
    return CheckUsable(swap, tensorflow::DataTypeSize(index_.OutputType(root)));
  }
  if (!index_.IsActivation(root)) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", swap.tensor, "' is not a float32 activation of the forward part: '",
                     swap.codec, "' is lossy and may not encode it"));
  }
  for (const ReturnSpec& back : swap.returns) {
    for (const std::string& consumer : back.consumers) {
      const int node = index_.Find(consumer);
      if (node < 0 || index_.IsBackward(node)) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("'", consumer, "' of the forward part would read '", swap.tensor,
                       "' as decoded by the lossy codec '", swap.codec, "'"));
    }
  }
  return CheckUsable(swap, tensorflow::DataTypeSize(index_.OutputType(root)));
}

// A codec that is missing here would fail the step. A GPU copies what it cannot encode.
absl::Status Rewriter::CheckUsable(const SwapSpec& swap, int element_bytes) const {
  const std::optional<Codec> codec = ParseCodec(swap.codec);
  if (!codec || index_.ManagesGpu()) return absl::OkStatus();
  const std::string why_not =
      WhyUnusable({*codec, element_bytes, static_cast<int>(swap.rate_percent)});
  if (why_not.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("'", swap.tensor, "': ", why_not));
}

absl::StatusOr<int> Rewriter::Beside(int node, const std::string& name,
                                     const SwapSpec& swap) const {
  absl::StatusOr<int> found = Known(name, swap);
  if (!found.ok() || (index_.AliveWith(node, *found) && index_.AliveWith(*found, node))) {
    return found;
  }
  return absl::InvalidArgumentError(absl::StrCat("'", name, "' may run when the swap of '",
                                                 swap.tensor, "' does not, or the reverse"));
}

absl::Status Rewriter::CheckMayWait(int node) const {
  if (index_.MayWait(node)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "'", index_.node(node).name(), "' (", index_.node(node).op(),
      ") must not wait: that could change the rounding of a sum, or the op takes no time"));
}

// No consumer twice: plans are untrusted input, and lists may be of any length.
absl::Status CheckConsumers(const SwapSpec& swap, const std::vector<std::string>& consumers,
                            const std::unordered_set<std::string>& each) {
  if (each.size() == consumers.size()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("a return of '", swap.tensor, "' names a consumer twice"));
}

void SetPlacementRequest(const SwapSpec& swap, NodeDef* out) {
  auto& attributes = *out->mutable_attr();
  attributes["tier"].set_s(swap.tier);
  attributes["codec"].set_s(swap.codec);
  attributes["rate"].set_i(swap.rate_percent);
  attributes["threads"].set_i(swap.threads);
}

// Swap out the value after all its users in this step. If it is still out when the next step reads
// the variable, the device restores it.
absl::Status Rewriter::ApplyToVariable(const SwapSpec& swap) {
  const tensorflow::TensorId id = tensorflow::ParseTensorName(swap.tensor);
  absl::StatusOr<int> handle = Known(std::string(id.node()), swap);
  if (!handle.ok()) return handle.status();
  const NodeDef& variable = index_.node(*handle);
  if (index_.OutputType({*handle, id.index()}) != tensorflow::DT_RESOURCE) {
    return absl::InvalidArgumentError(absl::StrCat("'", swap.tensor, "' is not a variable"));
  }
  if (const std::optional<Codec> codec = ParseCodec(swap.codec); codec && IsLossy(*codec)) {
    return absl::InvalidArgumentError(absl::StrCat("'", swap.tensor, "' is a variable: '",
                                                   swap.codec, "' is lossy and may not encode it"));
  }
  if (absl::Status status = CheckUsable(swap, 1); !status.ok()) return status;
  std::string key =
      absl::StrCat(absl::StrReplaceAll(variable.name(), {{":", "_"}}), "_", id.index());
  if (const int before = variable_swaps_[swap.tensor]++; before > 0) {
    absl::StrAppend(&key, "/", before);
  }
  NodeDef out;
  out.set_name(absl::StrCat(kNodePrefix, "out/", key));
  out.set_op("_VariableToHost");
  out.set_device(variable.device());
  out.add_input(InputName(variable.name(), id.index()));
  SetPlacementRequest(swap, &out);
  (*out.mutable_attr())["detached"].set_b(swap.gates.empty());
  for (const std::string& user : swap.after) {
    absl::StatusOr<int> found = Beside(*handle, user, swap);
    if (!found.ok()) return found.status();
    out.add_input(absl::StrCat("^", user));
  }
  for (const std::string& gate : swap.gates) {
    absl::StatusOr<int> found = Beside(*handle, gate, swap);
    if (!found.ok()) return found.status();
    if (absl::Status status = CheckMayWait(*found); !status.ok()) return status;
    AddControlInput(*found, out.name());
  }
  int ordinal = 0;
  for (const ReturnSpec& back : swap.returns) {
    NodeDef in;
    in.set_name(absl::StrCat(kNodePrefix, "in/", key, "/", ordinal++));
    in.set_op("_VariableFromHost");
    in.set_device(variable.device());
    in.add_input(out.input(0));
    if (swap.returns_in_step) in.add_input(absl::StrCat("^", out.name()));
    if (!back.trigger.empty()) {
      absl::StatusOr<int> found = Beside(*handle, back.trigger, swap);
      if (!found.ok()) return found.status();
      in.add_input(absl::StrCat("^", back.trigger));
    }
    for (const std::string& consumer : back.consumers) {
      absl::StatusOr<int> found = Beside(*handle, consumer, swap);
      if (!found.ok()) return found.status();
      if (absl::Status status = CheckMayWait(*found); !status.ok()) return status;
      AddControlInput(*found, in.name());
    }
    Remember(in.name(), *handle);
    *result_.add_node() = std::move(in);
  }
  Remember(out.name(), *handle);
  *result_.add_node() = std::move(out);
  return absl::OkStatus();
}

absl::Status Rewriter::ApplyToTensor(const SwapSpec& swap) {
  const tensorflow::TensorId id = tensorflow::ParseTensorName(swap.tensor);
  absl::StatusOr<int> producer = Known(std::string(id.node()), swap);
  if (!producer.ok()) return producer.status();
  const TensorId root{*producer, id.index()};
  const tensorflow::DataType type = index_.OutputType(root);
  if (type == tensorflow::DT_INVALID || !tensorflow::DataTypeCanUseMemcpy(type)) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", swap.tensor, "' is not an output of plain bytes and cannot be swapped"));
  }
  if (!index_.IsSwappableProducer(root.node) || !index_.InDeviceMemory(root)) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", swap.tensor, "' is owned outside of the step (",
                     index_.node(root.node).op(), "): swapping it would free nothing"));
  }
  if (absl::Status status = CheckCodec(swap, root); !status.ok()) return status;
  const std::string key = absl::StrCat(
      absl::StrReplaceAll(index_.node(root.node).name(), {{":", "_"}}), "_", root.port);
  const std::string device = index_.node(root.node).device();

  NodeDef out;
  out.set_name(absl::StrCat(kNodePrefix, "out/", key));
  if (copies_.count(out.name()) > 0) {
    return absl::InvalidArgumentError(absl::StrCat("there are two swaps of '", swap.tensor, "'"));
  }
  out.set_op("_CopyToHost");
  out.set_device(device);
  out.add_input(InputName(index_.node(root.node).name(), root.port));
  auto& out_attributes = *out.mutable_attr();
  out_attributes["T"].set_type(type);
  out_attributes["lazy"].set_b(swap.lazy);
  out_attributes["returns"].set_i(swap.returns.size());
  out_attributes["next_use"].set_i(swap.next_use);
  out_attributes["min_bytes"].set_i(min_bytes_);
  SetPlacementRequest(swap, &out);

  int ordinal = 0;
  for (const ReturnSpec& back : swap.returns) {
    NodeDef in;
    in.set_name(absl::StrCat(kNodePrefix, "in/", key, "/", ordinal));
    in.set_op("_CopyFromHost");
    in.set_device(device);
    in.add_input(out.name());
    (*in.mutable_attr())["T"].set_type(type);
    (*in.mutable_attr())["next_use"].set_i(back.next_use);
    (*in.mutable_attr())["lazy"].set_b(swap.lazy);
    const std::unordered_set<std::string> consumers(back.consumers.begin(), back.consumers.end());
    absl::Status status = CheckConsumers(swap, back.consumers, consumers);
    if (!status.ok()) return status;
    int trigger = -1;
    if (!back.trigger.empty()) {
      absl::StatusOr<int> found = Known(back.trigger, swap);
      if (!found.ok()) return found.status();
      trigger = *found;
      in.add_input(absl::StrCat("^", back.trigger));
    }
    for (const std::string& consumer : back.consumers) {
      absl::StatusOr<int> found = Known(consumer, swap);
      if (!found.ok()) return found.status();
      if (!index_.IsRewirable(*found) || !index_.AliveWith(root.node, *found) ||
          (trigger >= 0 && !index_.AliveWith(trigger, *found))) {
        return absl::InvalidArgumentError(absl::StrCat(
            "'", consumer, "' may run when the swap-in of '", swap.tensor, "' does not"));
      }
      const int twin = index_.Twin(*found);
      if (twin >= 0 && index_.Reads(twin, root) && consumers.count(index_.node(twin).name()) == 0) {
        return absl::InvalidArgumentError(
            absl::StrCat("the swap of '", swap.tensor, "' comes between '", consumer, "' and '",
                         index_.node(twin).name(), "', which oneDNN may fuse"));
      }
      status = Rewire(swap, root, consumer, in.name(), ordinal);
      if (!status.ok()) return status;
    }
    // The node runs whenever its tensor is produced if the trigger does.
    if (trigger < 0 || index_.AliveWith(trigger, root.node)) Remember(in.name(), root.node);
    *result_.add_node() = std::move(in);
    ++ordinal;
  }
  for (const std::string& gate : swap.gates) {
    absl::StatusOr<int> found = Known(gate, swap);
    if (!found.ok()) return found.status();
    if (!index_.AliveWith(root.node, *found)) {
      return absl::InvalidArgumentError(
          absl::StrCat("gate '", gate, "' may run when '", swap.tensor, "' does not exist"));
    }
    if (absl::Status status = CheckMayWait(*found); !status.ok()) return status;
    AddControlInput(*found, out.name());
  }
  Remember(out.name(), root.node);
  if (swap.lazy) on_demand_[index_.node(root.node).name()].push_back(out.name());
  *result_.add_node() = std::move(out);
  return absl::OkStatus();
}

absl::Status Rewriter::Rewire(const SwapSpec& swap, TensorId root, const std::string& consumer,
                              const std::string& returned, int ordinal) {
  const int node = index_.Find(consumer);
  bool found = false;
  for (size_t i = 0; i < index_.inputs(node).size(); ++i) {
    const TensorId input = index_.inputs(node)[i];
    if (!(input == root) && !(index_.Root(input) == root)) continue;
    // Data inputs come before control inputs, so the i-th is the i-th of the NodeDef.
    result_.mutable_node(node)->set_input(i, Clone(input, root, returned, ordinal));
    found = true;
  }
  if (found) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("'", consumer, "' does not read '", swap.tensor, "'"));
}

// Return the replacement for `alias`, a tensor that shares the buffer of `root`, after the swap-in
// `returned`.
std::string Rewriter::Clone(TensorId alias, TensorId root, const std::string& returned,
                            int ordinal) {
  if (alias == root) return returned;
  const NodeDef& original = index_.node(alias.node);
  const std::string name = absl::StrCat(kNodePrefix, "alias/", original.name(), "/", ordinal);
  if (clones_.count(name) > 0) return name;
  const std::string source = Clone(index_.inputs(alias.node)[0], root, returned, ordinal);
  NodeDef clone = original;
  clone.set_name(name);
  clone.clear_input();
  clone.add_input(source);
  for (size_t i = 1; i < index_.inputs(alias.node).size(); ++i) {
    clone.add_input(original.input(i));
  }
  clone.mutable_attr()->erase("_class");
  clones_.emplace(name, source);
  *result_.add_node() = std::move(clone);
  return name;
}

void Rewriter::AddControlInput(int to, const std::string& from) {
  NodeDef* node = result_.mutable_node(to);
  const auto [known, is_new] = control_inputs_.try_emplace(to);
  if (is_new) known->second.insert(node->input().begin(), node->input().end());
  const std::string input = absl::StrCat("^", from);
  if (known->second.insert(input).second) node->add_input(input);
}

Rewriter::Place Rewriter::Find(const std::string& name) const {
  const auto copy = copies_.find(name);
  if (copy != copies_.end()) return copy->second;
  const int node = index_.Find(name);
  return {node, node};
}

absl::Status Rewriter::AddOrder(const std::string& before, const std::string& after) {
  const Place from = Find(before), to = Find(after);
  if (from.node < 0 || to.node < 0) {
    return absl::NotFoundError(absl::StrCat("the order edge '", before, "' -> '", after,
                                            "' names a node that is not in the graph"));
  }
  if (!index_.AliveWith(from.alive_as, to.alive_as)) {
    return absl::InvalidArgumentError(absl::StrCat("the order edge '", before, "' -> '", after,
                                                   "' could keep '", after, "' from running"));
  }
  if (to.node < index_.size()) {
    if (absl::Status status = CheckMayWait(to.node); !status.ok()) return status;
  }
  AddControlInput(to.node, before);
  // The executor goes on with an op on the same thread if nothing else became ready with it: so it
  // waits for on-demand copies out, too, which take no time.
  const auto copies = on_demand_.find(before);
  if (copies == on_demand_.end()) return absl::OkStatus();
  for (const std::string& copy : copies->second) AddControlInput(to.node, copy);
  return absl::OkStatus();
}

}  // namespace

bool IsRewritten(const GraphDef& graph) {
  for (const NodeDef& node : graph.node()) {
    const std::string& op = node.op();
    if (op == "_CopyToHost" || op == "_VariableToHost") return true;
    if (op == "_ElementToHost" || op == "_RowsToHost") return true;
  }
  return false;
}

absl::StatusOr<GraphDef> Rewrite(const GraphDef& graph, const GraphIndex& index,
                                 const std::vector<SwapSpec>& swaps,
                                 const std::vector<std::pair<std::string, std::string>>& order,
                                 int64_t min_bytes) {
  Rewriter rewriter(graph, index, min_bytes);
  for (const SwapSpec& swap : swaps) {
    if (absl::Status status = rewriter.Apply(swap); !status.ok()) return status;
  }
  for (const auto& [before, after] : order) {
    if (absl::Status status = rewriter.AddOrder(before, after); !status.ok()) return status;
  }
  GraphDef result = rewriter.Take();
  // Check that every input exists, names are unique, and no edge closed a cycle.
  const tensorflow::FunctionLibraryDefinition functions(tensorflow::OpRegistry::Global(),
                                                        graph.library());
  absl::StatusOr<GraphIndex> check = GraphIndex::Build(result, functions);
  if (!check.ok()) return check.status();
  // If the given graph seems to deadlock already, its groups are not those assumed here.
  const std::vector<int> groups = CollectiveGroups(index);
  if (index.CheckCollectiveGroups(groups).ok()) {
    if (absl::Status status = check->CheckCollectiveGroups(groups); !status.ok()) return status;
  }
  return result;
}

}  // namespace tfswap
