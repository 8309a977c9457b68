#include "grappler/rewrite/update_turns.h"

#include <algorithm>
#include <array>
#include <limits>
#include <string>
#include <unordered_set>
#include <vector>

namespace tfswap {

namespace {

class Turns {
 public:
  Turns(const GraphIndex& index, const GraphIndex& late)
      : index_(index), late_(late), successors_(late.size()) {
    for (int n = 0; n < late.size(); ++n) {
      for (const TensorId& input : late.inputs(n)) successors_[input.node].push_back(n);
      for (int input : late.control_inputs(n)) successors_[input].push_back(n);
    }
    FindBranches();
    FindTurns();
    FindFirst();
  }

  Edges Make() const {
    Edges edges;
    for (int n = 0; n < late_.size(); ++n) {
      if (!Begins(n)) continue;
      for (int before : Before(n)) {
        edges.emplace_back(late_.node(before).name(), late_.node(n).name());
      }
    }
    return edges;
  }

 private:
  static constexpr int kNone = std::numeric_limits<int>::max();

  bool IsRead(int n) const { return late_.node(n).op() == "ReadVariableOp"; }

  // Find, for each node, where what it waits for leaves the path to the deepest update.
  void FindBranches() {
    int deepest = -1;
    for (int n = 0; n < late_.size(); ++n) {
      if (late_.IsUpdate(n) && (deepest < 0 || late_.depth(n) > late_.depth(deepest))) deepest = n;
    }
    std::vector<bool> on_path(late_.size(), false);
    for (auto n = late_.order().rbegin(); n != late_.order().rend(); ++n) {
      on_path[*n] = *n == deepest || std::any_of(successors_[*n].begin(), successors_[*n].end(),
                                                 [&](int successor) { return on_path[successor]; });
    }
    branch_.assign(late_.size(), 0);
    for (int n : late_.order()) {
      if (on_path[n] && n != deepest) branch_[n] = late_.position(n);
      for (int successor : successors_[n]) {
        branch_[successor] = std::max(branch_[successor], branch_[n]);
      }
    }
    data_branch_.assign(late_.size(), 0);
    for (int n : late_.order()) {
      if (on_path[n]) data_branch_[n] = late_.position(n);
      for (const TensorId& input : late_.inputs(n)) {
        data_branch_[n] = std::max(data_branch_[n], data_branch_[input.node]);
      }
    }
  }

  void FindTurns() {
    std::vector<int> updates;
    std::vector<std::array<int, 4>> keys(late_.size());
    std::vector<bool> behind(late_.size(), false);  // an update
    for (int n : late_.order()) {
      for (int successor : successors_[n]) {
        behind[successor] = behind[successor] || behind[n] || late_.IsUpdate(n);
      }
      if (!late_.IsUpdate(n)) continue;
      const int gradient = UpdateByGradient(n);
      if (gradient < 0) continue;
      // An assignment frees the old value.
      const bool replaces = late_.node(n).op() == "AssignVariableOp";
      keys[n] = {branch_[gradient], replaces ? 0 : 1, late_.position(gradient), late_.position(n)};
      updates.push_back(n);
    }
    std::sort(updates.begin(), updates.end(), [&](int a, int b) { return keys[a] < keys[b]; });
    std::unordered_set<int> seen;
    for (int update : updates) {
      std::vector<int> readers;
      for (int reader : ReadersOfOldValue(update)) {
        // No update comes before the reader, so the reader may come before an update.
        if (!behind[reader] && seen.insert(reader).second) readers.push_back(reader);
      }
      const int branch = keys[update][0];
      if (!readers.empty()) turns_.push_back({branch, std::move(readers)});
      turns_.push_back({branch, {update}});
    }
  }

  // Return the update itself. Weight decay needs no gradient, and would run before the step: it
  // comes before the update that waits for it, which is returned. -1: the update takes no turn.
  int UpdateByGradient(int update) const {
    if (index_.depth(update) > 0) return update;
    if (successors_[update].size() != 1) return -1;
    const int next = successors_[update][0];
    const bool is_of_same = late_.Reads(next, late_.Root(late_.inputs(update)[0]));
    return is_of_same && late_.IsUpdate(next) && index_.depth(next) > 0 ? next : -1;
  }

  // Return what uses a variable's value, or what is computed from variables alone, and is alive
  // whenever the update is.
  std::vector<int> ReadersOfOldValue(int update) const {
    const TensorId variable = index_.Root(index_.inputs(update)[0]);
    std::vector<int> readers, open;
    for (const GraphIndex::Consumer& user : index_.consumers(variable.node)) {
      if (user.port == variable.port && IsRead(user.node)) open.push_back(user.node);
    }
    std::unordered_set<int> seen;
    while (!open.empty()) {
      const int at = open.back();
      open.pop_back();
      for (const GraphIndex::Consumer& consumer : index_.consumers(at)) {
        const int reader = consumer.node;
        if (!seen.insert(reader).second) continue;
        if (index_.IsOfVariables(reader)) {
          open.push_back(reader);
        } else if (index_.depth(reader) > 0 && !index_.MayFuse(reader) &&
                   index_.AliveWith(reader, update)) {
          readers.push_back(reader);
        }
      }
    }
    return readers;
  }

  // Find the first turn that depends on each node. No earlier turn waits for the node.
  void FindFirst() {
    first_.assign(late_.size(), kNone);
    for (size_t turn = 0; turn < turns_.size(); ++turn) {
      for (int n : turns_[turn].ops) first_[n] = std::min(first_[n], static_cast<int>(turn));
    }
    for (bool changes = true; changes;) {  // once more for each loop within a loop
      changes = false;
      for (auto n = late_.order().rbegin(); n != late_.order().rend(); ++n) {
        for (int successor : successors_[*n]) {
          changes |= first_[successor] < first_[*n];
          first_[*n] = std::min(first_[*n], first_[successor]);
        }
      }
    }
  }

  // Return whether the work of a turn begins with the node.
  bool Begins(int n) const {
    if (first_[n] == kNone || late_.IsUpdate(n)) return false;
    if (IsRead(n)) return late_.MayWait(n);
    const auto& inputs = late_.inputs(n);
    const bool goes_on = std::any_of(inputs.begin(), inputs.end(), [&](TensorId input) {
      return first_[input.node] == first_[n] && late_.node(input.node).op() != "Const";
    });
    return !goes_on && late_.depth(n) > 0 && late_.IsOrderable(n);
  }

  // Return the ops of the last turn that the node waits for and that has any on its device. What
  // belongs to a gradient waits for no turn that branches off later: the head's gradient of a
  // tied embedding is made with the head's, long before the table's turn.
  std::vector<int> Before(int n) const {
    const bool is_gradient = !index_.IsOfVariables(n) && data_branch_[n] > 0;
    std::vector<int> before;
    for (int turn = first_[n] - 1; turn >= 0 && before.empty(); --turn) {
      if (is_gradient && turns_[turn].branch > data_branch_[n]) continue;
      for (int op : turns_[turn].ops) {
        if (late_.node(op).device() == late_.node(n).device() && first_[op] == turn &&
            late_.AliveWith(op, n)) {
          before.push_back(op);
        }
      }
    }
    return before;
  }

  struct Turn {
    int branch;            // of what it needs
    std::vector<int> ops;  // an update, or the last readers of a value
  };

  const GraphIndex& index_;
  const GraphIndex& late_;
  std::vector<std::vector<int>> successors_;  // also through control edges
  // By node, positions on the path to the deepest update: the last one that it waits for, and the
  // last one whose data it uses.
  std::vector<int> branch_, data_branch_;
  std::vector<Turn> turns_;
  std::vector<int> first_;  // by node
};

}  // namespace

Edges UpdateTurns(const GraphIndex& index, const GraphIndex& late) {
  return Turns(index, late).Make();
}

}  // namespace tfswap
