#include "grappler/index/variable_reads.h"

#include <algorithm>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace tfswap {

using ::tensorflow::GraphDef;
using ::tensorflow::NodeDef;

namespace {

bool IsRead(const GraphIndex& index, int n) { return index.node(n).op() == "ReadVariableOp"; }

bool IsConstant(const GraphIndex& index, int n) { return index.node(n).op() == "Const"; }

// Make `node` wait for the node of that name.
void WaitFor(const std::string& name, NodeDef* node) {
  const std::string input = absl::StrCat("^", name);
  if (std::find(node->input().begin(), node->input().end(), input) == node->input().end()) {
    node->add_input(input);
  }
}

class BackwardWeights {
 public:
  BackwardWeights(const GraphIndex& index, const GraphDef& graph)
      : index_(index), graph_(graph), result_(graph), uses_(index.size()), again_(index.size()) {}

  GraphDef Make() {
    std::vector<int> by_position(index_.size());
    for (int n = 0; n < index_.size(); ++n) by_position[index_.position(n)] = n;
    std::for_each(by_position.rbegin(), by_position.rend(), [this](int n) { FindUses(n); });
    for (int n = 0; n < index_.size(); ++n) {
      if (IsOnlyBackward(n)) Redirect(n, result_.mutable_node(n));
    }
    return std::move(result_);
  }

 private:
  // Which parts of the step use a result that is computed from variables alone.
  struct Uses {
    bool forward = false;
    bool backward = false;
  };

  void FindUses(int n) {
    if (!index_.IsOfVariables(n)) return;
    for (const GraphIndex::Consumer& consumer : index_.consumers(n)) {
      const Uses& further = uses_[consumer.node];
      const bool passes = further.forward || further.backward;
      uses_[n].backward |= index_.IsBackward(consumer.node) || further.backward;
      uses_[n].forward |= !index_.IsBackward(consumer.node) && (!passes || further.forward);
    }
  }

  bool IsOnlyBackward(int n) const {
    return index_.IsBackward(n) || (uses_[n].backward && !uses_[n].forward);
  }

  // Let `node` read what is computed again for the backward part.
  void Redirect(int n, NodeDef* node) {
    for (size_t i = 0; i < index_.inputs(n).size(); ++i) {
      const TensorId input = index_.inputs(n)[i];
      if (!uses_[input.node].forward || !uses_[input.node].backward) continue;
      const std::string& again = Again(input.node);
      if (!again.empty()) node->set_input(static_cast<int>(i), InputName(again, input.port));
    }
  }

  // Return the name of the copy of the op; "" if that name is taken.
  const std::string& Again(int n) {
    if (!again_[n].empty()) return again_[n];
    NodeDef copy = graph_.node(n);
    copy.set_name(absl::StrCat(copy.name(), "/again"));
    if (index_.Find(copy.name()) >= 0) return again_[n];
    copy.mutable_attr()->erase("_class");
    Redirect(n, &copy);
    if (IsRead(index_, n)) LetUpdatesWait(n, copy.name());
    again_[n] = copy.name();
    *result_.add_node() = std::move(copy);
    return again_[n];
  }

  // The new read must see the same value: it runs before later updates.
  void LetUpdatesWait(int read, const std::string& again) {
    const TensorId variable = index_.Root(index_.inputs(read)[0]);
    for (int update = 0; update < index_.size(); ++update) {
      if (index_.IsUpdate(update) && index_.position(update) > index_.position(read) &&
          index_.Reads(update, variable)) {
        WaitFor(again, result_.mutable_node(update));
      }
    }
  }

  const GraphIndex& index_;
  const GraphDef& graph_;
  GraphDef result_;
  std::vector<Uses> uses_;
  std::vector<std::string> again_;  // by node: the name of its copy
};

}  // namespace

GraphDef WithBackwardWeights(const GraphIndex& index, const GraphDef& graph) {
  return BackwardWeights(index, graph).Make();
}

namespace {

// Return the shallowest reader of `n`, directly or through ops that depend on variables alone; -1
// if there is none.
int FirstDeepReader(const GraphIndex& index, int n) {
  int first = -1;
  std::vector<int> open = {n};
  std::unordered_set<int> seen;  // loops contain cycles
  while (!open.empty()) {
    const int at = open.back();
    open.pop_back();
    for (const GraphIndex::Consumer& consumer : index.consumers(at)) {
      if (index.depth(consumer.node) == 0) {
        if (seen.insert(consumer.node).second) open.push_back(consumer.node);
      } else if (first < 0 || index.depth(consumer.node) < index.depth(first)) {
        first = consumer.node;
      }
    }
  }
  return first;
}

}  // namespace

Edges LateReads(const GraphIndex& index) {
  Edges edges;
  for (int n = 0; n < index.size(); ++n) {
    if (!IsRead(index, n) || index.depth(n) != 0 || !index.MayWait(n)) continue;
    const int first = FirstDeepReader(index, n);
    if (first < 0) continue;
    const int trigger = index.TriggerBefore(first, 1, 0);
    if (trigger >= 0 && index.depth(trigger) < index.depth(first) && index.AliveWith(trigger, n)) {
      edges.emplace_back(index.node(trigger).name(), index.node(n).name());
    }
  }
  return edges;
}

namespace {

using Successors = std::vector<std::vector<int>>;  // of each node, also through control edges

// Return where an update comes in the order in which updates take turns; -1 if nowhere.
int TurnOf(const GraphIndex& index, const Successors& successors, int update) {
  if (index.depth(update) > 0) return index.position(update);  // as gradients become ready
  // Weight decay needs no gradient, and would run before the step. It comes before the update that
  // waits for it.
  if (successors[update].size() != 1) return -1;
  const int next = successors[update][0];
  const bool is_of_same = index.Reads(next, index.Root(index.inputs(update)[0]));
  return is_of_same && index.IsUpdate(next) && index.depth(next) > 0 ? index.position(next) : -1;
}

}  // namespace

Edges SequentialUpdates(const GraphIndex& index) {
  std::vector<int> by_position(index.size());
  Successors successors(index.size());
  for (int n = 0; n < index.size(); ++n) {
    by_position[index.position(n)] = n;
    for (const TensorId& input : index.inputs(n)) successors[input.node].push_back(n);
    for (int input : index.control_inputs(n)) successors[input].push_back(n);
  }
  std::vector<int> updates;
  std::vector<std::pair<int, int>> turns(index.size());
  for (int n = 0; n < index.size(); ++n) {
    if (!index.IsUpdate(n)) continue;
    turns[n] = {TurnOf(index, successors, n), index.position(n)};
    if (turns[n].first >= 0) updates.push_back(n);
  }
  std::sort(updates.begin(), updates.end(), [&](int a, int b) { return turns[a] < turns[b]; });
  // The only update that depends on the node, directly (itself if the node is an update): kNone if
  // no update does, kSeveral if several independent ones do. So no earlier update waits for the
  // node.
  constexpr int kNone = -1, kSeveral = -2;
  std::vector<int> first(index.size(), kNone);
  for (int place = index.size() - 1; place >= 0; --place) {
    const int n = by_position[place];
    if (index.IsUpdate(n)) {
      first[n] = n;
      continue;
    }
    for (int successor : successors[n]) {
      const int behind = first[successor];
      if (behind != kNone) first[n] = first[n] == kNone || first[n] == behind ? behind : kSeveral;
    }
  }
  // The first ops of the work for an update: reads of variables, or ops on the gradient.
  std::vector<std::vector<int>> begins(index.size());
  for (int n = 0; n < index.size(); ++n) {
    if (first[n] < 0 || first[n] == n || index.IsMilestone(n)) continue;
    const bool goes_on =
        std::any_of(index.inputs(n).begin(), index.inputs(n).end(), [&](TensorId input) {
          return first[input.node] == first[n] && !IsConstant(index, input.node);
        });
    if ((IsRead(index, n) && index.MayWait(n)) ||
        (!goes_on && index.depth(n) > 0 && index.IsOrderable(n))) {
      begins[first[n]].push_back(n);
    }
  }
  Edges edges;
  for (size_t i = 1; i < updates.size(); ++i) {
    const int before = updates[i - 1];
    for (int n : begins[updates[i]]) {
      if (!index.AliveWith(before, n)) continue;
      edges.emplace_back(index.node(before).name(), index.node(n).name());
    }
  }
  return edges;
}

}  // namespace tfswap
