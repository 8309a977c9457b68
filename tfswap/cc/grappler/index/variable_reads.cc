#include "grappler/index/variable_reads.h"

#include <algorithm>
#include <array>
#include <limits>
#include <string>
#include <unordered_map>
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

// The order in which updates take turns.
class Turns {
 public:
  explicit Turns(const GraphIndex& index)
      : index_(index), by_position_(index.size()), successors_(index.size()) {
    for (int n = 0; n < index.size(); ++n) {
      by_position_[index.position(n)] = n;
      for (const TensorId& input : index.inputs(n)) successors_[input.node].push_back(n);
      for (int input : index.control_inputs(n)) successors_[input].push_back(n);
    }
    FindBranches();
    FindOrder();
    FindFirst();
  }

  // The updates, in their order.
  const std::vector<int>& order() const { return order_; }

  // Return the place in that order of the first update that depends on the node, or is the node;
  // kNone if no update does. No earlier update waits for the node.
  int First(int n) const { return first_[n]; }

  static constexpr int kNone = std::numeric_limits<int>::max();

 private:
  // Find, for each node, where what it needs leaves the path to the deepest update.
  void FindBranches() {
    int deepest = -1;
    for (int n = 0; n < index_.size(); ++n) {
      if (index_.IsUpdate(n) && (deepest < 0 || index_.depth(n) > index_.depth(deepest))) {
        deepest = n;
      }
    }
    std::vector<bool> on_path(index_.size(), false);
    for (auto n = by_position_.rbegin(); n != by_position_.rend(); ++n) {
      on_path[*n] = *n == deepest ||
                    std::any_of(successors_[*n].begin(), successors_[*n].end(),
                                [&](int successor) { return on_path[successor]; });
    }
    branch_.assign(index_.size(), 0);
    for (int n : by_position_) {
      if (on_path[n] && n != deepest) branch_[n] = index_.position(n);
      for (int successor : successors_[n]) {
        branch_[successor] = std::max(branch_[successor], branch_[n]);
      }
    }
  }

  void FindOrder() {
    std::vector<std::array<int, 3>> turns(index_.size());
    for (int n = 0; n < index_.size(); ++n) {
      if (!index_.IsUpdate(n)) continue;
      const int gradient = UpdateByGradient(n);
      if (gradient < 0) continue;
      turns[n] = {branch_[gradient], index_.position(gradient), index_.position(n)};
      order_.push_back(n);
    }
    std::sort(order_.begin(), order_.end(), [&](int a, int b) { return turns[a] < turns[b]; });
  }

  // Return the update itself. Weight decay needs no gradient, and would run before the step: it
  // comes before the update that waits for it, which is returned. -1: the update takes no turn.
  int UpdateByGradient(int update) const {
    if (index_.depth(update) > 0) return update;
    if (successors_[update].size() != 1) return -1;
    const int next = successors_[update][0];
    const bool is_of_same = index_.Reads(next, index_.Root(index_.inputs(update)[0]));
    return is_of_same && index_.IsUpdate(next) && index_.depth(next) > 0 ? next : -1;
  }

  void FindFirst() {
    first_.assign(index_.size(), kNone);
    for (size_t i = 0; i < order_.size(); ++i) first_[order_[i]] = static_cast<int>(i);
    for (bool changes = true; changes;) {  // once more for each loop within a loop
      changes = false;
      for (auto n = by_position_.rbegin(); n != by_position_.rend(); ++n) {
        for (int successor : successors_[*n]) {
          changes |= first_[successor] < first_[*n];
          first_[*n] = std::min(first_[*n], first_[successor]);
        }
      }
    }
  }

  const GraphIndex& index_;
  std::vector<int> by_position_;
  std::vector<std::vector<int>> successors_;  // also through control edges
  std::vector<int> branch_;
  std::vector<int> order_;
  std::vector<int> first_;
};

}  // namespace

Edges SequentialUpdates(const GraphIndex& index) {
  const Turns turns(index);
  const std::vector<int>& order = turns.order();
  // Return the last update on the device of `n` before that place in the order; -1: none.
  const auto last_before = [&](int n, int place) {
    while (--place >= 0 && index.node(order[place]).device() != index.node(n).device()) continue;
    return place < 0 ? -1 : order[place];
  };
  Edges edges;
  for (int n = 0; n < index.size(); ++n) {
    const int first = turns.First(n);
    if (first == Turns::kNone || index.IsUpdate(n)) continue;
    const auto& inputs = index.inputs(n);
    const bool goes_on = std::any_of(inputs.begin(), inputs.end(), [&](TensorId input) {
      return turns.First(input.node) == first && index.node(input.node).op() != "Const";
    });
    const bool begins = IsRead(index, n) ? index.MayWait(n)
                                         : !goes_on && index.depth(n) > 0 && index.IsOrderable(n);
    const int before = begins ? last_before(n, first) : -1;
    if (before < 0 || !index.AliveWith(before, n)) continue;
    edges.emplace_back(index.node(before).name(), index.node(n).name());
  }
  return edges;
}

}  // namespace tfswap
