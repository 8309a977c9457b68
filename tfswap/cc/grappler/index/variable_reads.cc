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
    const std::vector<int>& order = index_.order();
    std::for_each(order.rbegin(), order.rend(), [this](int n) { FindUses(n); });
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

Edges ReadsInTurn(const GraphIndex& index, const Edges& chain) {
  // By node, its place in the chain. The first ops have place 0: nothing comes before them.
  std::vector<int> place(index.size(), -1);
  for (const auto& [before, after] : chain) place[index.Find(before)] = 0;
  for (size_t i = 0; i < chain.size(); ++i) place[index.Find(chain[i].second)] = i + 1;
  // By node, the first place of an op that waits for it.
  const int never = static_cast<int>(chain.size()) + 1;
  std::vector<int> first(index.size(), never);
  for (auto n = index.order().rbegin(); n != index.order().rend(); ++n) {
    const int own = place[*n] >= 0 ? place[*n] : first[*n];
    for (const TensorId& input : index.inputs(*n)) {
      first[input.node] = std::min(first[input.node], own);
    }
    for (int input : index.control_inputs(*n)) first[input] = std::min(first[input], own);
  }
  Edges edges;
  for (int n = 0; n < index.size(); ++n) {
    if (!IsRead(index, n) || first[n] == 0 || first[n] == never || !index.MayWait(n)) continue;
    const std::string& before = chain[first[n] - 1].first;
    if (!index.AliveWith(index.Find(before), n)) continue;
    edges.emplace_back(before, index.node(n).name());
  }
  return edges;
}

}  // namespace tfswap
