#include "grappler/rewrite/recomputes.h"

#include <algorithm>
#include <string>
#include <unordered_map>
#include <unordered_set>

#include "absl/strings/str_cat.h"
#include "grappler/index/graph_index.h"
#include "grappler/index/input_names.h"
#include "tensorflow/core/graph/tensor_id.h"

namespace tfswap {

using ::tensorflow::GraphDef;
using ::tensorflow::NodeDef;

namespace {

// The planners in tfswap/planning use the same names.
std::string CloneName(const std::string& name, int ordinal) {
  return absl::StrCat(name, "/again/", ordinal);
}

class Recomputer {
 public:
  Recomputer(const GraphDef& graph, const GraphIndex& index) : index_(index), result_(graph) {
    for (int n = 0; n < index.size(); ++n) nodes_[graph.node(n).name()] = {n, n};
  }

  absl::Status Apply(const RecomputeSpec& spec, int ordinal);
  GraphDef Take() { return std::move(result_); }

 private:
  // A node of the result, and the original node that it is or is a clone of.
  struct Place {
    int node;
    int original;
  };
  absl::StatusOr<Place> Known(const std::string& name, const RecomputeSpec& spec) const;
  absl::Status CheckClones(const RecomputeSpec& spec) const;
  absl::Status Clone(const std::string& name, const std::string& trigger, int ordinal);
  absl::Status Rewire(const RecomputeSpec& spec, const std::string& consumer, int ordinal);
  // Return the input whose buffer `input` shares.
  std::string Root(const std::string& input) const;
  // Return the replacement for `input`, which is the recomputed tensor or an alias of it.
  std::string RecomputedInput(const std::string& input, const std::string& root, int ordinal);

  const GraphIndex& index_;
  GraphDef result_;
  std::unordered_map<std::string, Place> nodes_;
};

absl::StatusOr<Recomputer::Place> Recomputer::Known(const std::string& name,
                                                    const RecomputeSpec& spec) const {
  const auto found = nodes_.find(name);
  if (found != nodes_.end()) return found->second;
  return absl::NotFoundError(absl::StrCat("the recomputation of '", spec.tensor, "' names '", name,
                                          "', which is not in the graph"));
}

absl::Status Recomputer::CheckClones(const RecomputeSpec& spec) const {
  const absl::StatusOr<Place> trigger = Known(spec.trigger, spec);
  if (!trigger.ok()) return trigger.status();
  const absl::StatusOr<Place> maker = Known(NodeOf(spec.tensor), spec);
  if (!maker.ok()) return maker.status();
  const std::string root = Root(spec.tensor);
  if (root != spec.tensor && root + ":0" != spec.tensor) {
    return absl::InvalidArgumentError(absl::StrCat("'", spec.tensor, "' shares its memory with '",
                                                   root, "', which can be recomputed instead"));
  }
  if (spec.nodes.empty() || spec.nodes.back() != NodeOf(spec.tensor)) {
    return absl::InvalidArgumentError(
        absl::StrCat("the last op that recomputes '", spec.tensor, "' must be its producer"));
  }
  for (const std::string& name : spec.nodes) {
    const absl::StatusOr<Place> node = Known(name, spec);
    if (!node.ok()) return node.status();
    if (!index_.IsRepeatable(node->original)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "'", name, "' (", index_.node(node->original).op(),
          ") may not give the same result again: '", spec.tensor, "' cannot be recomputed"));
    }
    if (!index_.AliveWith(node->original, maker->original) ||
        !index_.AliveWith(trigger->original, maker->original)) {
      return absl::InvalidArgumentError(
          absl::StrCat("'", name, "' may not run when '", spec.tensor, "' is recomputed"));
    }
  }
  const std::unordered_set<std::string> consumers(spec.consumers.begin(), spec.consumers.end());
  if (consumers.size() != spec.consumers.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the recomputation of '", spec.tensor, "' names a consumer twice"));
  }
  for (const std::string& consumer : spec.consumers) {
    const absl::StatusOr<Place> node = Known(consumer, spec);
    if (!node.ok()) return node.status();
    if (!index_.IsRewirable(node->original) || !index_.AliveWith(maker->original, node->original)) {
      return absl::InvalidArgumentError(
          absl::StrCat("'", consumer, "' may run when '", spec.tensor, "' is not recomputed"));
    }
    const int twin = index_.Twin(node->original);
    if (twin < 0 || node->node != node->original) continue;
    const std::string& other = index_.node(twin).name();
    const auto& inputs = result_.node(twin).input();
    const bool reads = std::any_of(inputs.begin(), inputs.end(), [&](const std::string& input) {
      return !IsControl(input) && Root(input) == root;
    });
    if (reads && consumers.count(other) == 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("'", spec.tensor, "' would be recomputed for '", consumer, "' but not for '",
                       other, "', with which oneDNN may fuse it"));
    }
  }
  return absl::OkStatus();
}

absl::Status Recomputer::Clone(const std::string& name, const std::string& trigger, int ordinal) {
  const Place place = nodes_.at(name);
  NodeDef clone = result_.node(place.node);
  clone.set_name(CloneName(name, ordinal));
  clone.clear_input();
  clone.mutable_attr()->erase("_class");
  bool behind_a_clone = false;
  for (const std::string& input : result_.node(place.node).input()) {
    if (IsControl(input)) continue;
    const tensorflow::TensorId id = tensorflow::ParseTensorName(input);
    const std::string again = CloneName(std::string(id.node()), ordinal);
    const bool is_cloned = nodes_.count(again) > 0;
    behind_a_clone |= is_cloned;
    clone.add_input(is_cloned ? InputName(again, id.index()) : input);
  }
  // Otherwise TensorFlow would merge the clone with the original.
  if (!behind_a_clone) clone.add_input(absl::StrCat("^", trigger));
  if (!nodes_.emplace(clone.name(), Place{result_.node_size(), place.original}).second) {
    return absl::InvalidArgumentError(absl::StrCat("two nodes are named '", clone.name(), "'"));
  }
  *result_.add_node() = std::move(clone);
  return absl::OkStatus();
}

std::string Recomputer::Root(const std::string& input) const {
  std::string at = input;
  while (true) {
    const tensorflow::TensorId id = tensorflow::ParseTensorName(at);
    const auto found = nodes_.find(std::string(id.node()));
    if (found == nodes_.end() || id.index() != 0 || !index_.IsAlias(found->second.original) ||
        result_.node(found->second.node).input_size() == 0) {
      return InputName(std::string(id.node()), id.index());
    }
    at = result_.node(found->second.node).input(0);
  }
}

std::string Recomputer::RecomputedInput(const std::string& input, const std::string& root,
                                        int ordinal) {
  const tensorflow::TensorId id = tensorflow::ParseTensorName(input);
  const std::string name(id.node());
  const std::string again = CloneName(name, ordinal);
  if (InputName(name, id.index()) != root && nodes_.count(again) == 0) {
    const Place place = nodes_.at(name);
    NodeDef alias = result_.node(place.node);
    alias.set_name(again);
    alias.mutable_attr()->erase("_class");
    alias.set_input(0, RecomputedInput(alias.input(0), root, ordinal));
    nodes_.emplace(again, Place{result_.node_size(), place.original});
    *result_.add_node() = std::move(alias);
  }
  return InputName(again, id.index());
}

absl::Status Recomputer::Rewire(const RecomputeSpec& spec, const std::string& consumer,
                                int ordinal) {
  const std::string root = Root(spec.tensor);
  const int node = nodes_.at(consumer).node;
  bool found = false;
  for (int i = 0; i < result_.node(node).input_size(); ++i) {
    const std::string input = result_.node(node).input(i);
    if (IsControl(input) || Root(input) != root) continue;
    const std::string again = RecomputedInput(input, root, ordinal);
    result_.mutable_node(node)->set_input(i, again);
    found = true;
  }
  if (found) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("'", consumer, "' does not read '", spec.tensor, "'"));
}

absl::Status Recomputer::Apply(const RecomputeSpec& spec, int ordinal) {
  if (result_.node_size() + spec.nodes.size() > MaxNodes(index_.size())) {
    return absl::InvalidArgumentError(
        absl::StrCat("the recomputations of the plan grow a graph of ", index_.size(),
                     " nodes beyond the limit of ", MaxNodes(index_.size())));
  }
  if (absl::Status status = CheckClones(spec); !status.ok()) return status;
  for (const std::string& name : spec.nodes) {
    if (absl::Status status = Clone(name, spec.trigger, ordinal); !status.ok()) return status;
  }
  for (const std::string& consumer : spec.consumers) {
    if (absl::Status status = Rewire(spec, consumer, ordinal); !status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<GraphDef> WithRecomputes(const GraphDef& graph,
                                        const tensorflow::FunctionLibraryDefinition& functions,
                                        const std::vector<RecomputeSpec>& specs) {
  if (specs.empty()) return graph;
  absl::StatusOr<GraphIndex> index = GraphIndex::Build(graph, functions);
  if (!index.ok()) return index.status();
  Recomputer recomputer(graph, *index);
  for (size_t i = 0; i < specs.size(); ++i) {
    absl::Status status = recomputer.Apply(specs[i], static_cast<int>(i));
    if (!status.ok()) return status;
  }
  return recomputer.Take();
}

}  // namespace tfswap
