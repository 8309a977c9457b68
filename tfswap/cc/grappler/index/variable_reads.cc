#include "grappler/index/variable_reads.h"

#include <algorithm>
#include <string>
#include <unordered_set>
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

}  // namespace

GraphDef WithBackwardReads(const GraphIndex& index, const GraphDef& graph) {
  GraphDef split = graph;
  for (int n = 0; n < index.size(); ++n) {
    if (!IsRead(index, n)) continue;
    std::vector<GraphIndex::Consumer> backward;
    for (const GraphIndex::Consumer& consumer : index.consumers(n)) {
      if (index.IsBackward(consumer.node)) backward.push_back(consumer);
    }
    if (backward.empty() || backward.size() == index.consumers(n).size()) continue;
    NodeDef again = graph.node(n);
    again.set_name(absl::StrCat(again.name(), "/again"));
    if (index.Find(again.name()) >= 0) continue;
    again.mutable_attr()->erase("_class");
    for (const GraphIndex::Consumer& consumer : backward) {
      split.mutable_node(consumer.node)->set_input(consumer.input, again.name());
    }
    // The new read must see the same value: it runs before later updates.
    const TensorId variable = index.Root(index.inputs(n)[0]);
    for (int update = 0; update < index.size(); ++update) {
      if (index.IsUpdate(update) && index.position(update) > index.position(n) &&
          index.Reads(update, variable)) {
        WaitFor(again.name(), split.mutable_node(update));
      }
    }
    *split.add_node() = std::move(again);
  }
  return split;
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

Edges SequentialUpdates(const GraphIndex& index) {
  std::vector<int> updates, by_position(index.size());
  std::vector<std::vector<int>> successors(index.size());
  for (int n = 0; n < index.size(); ++n) {
    by_position[index.position(n)] = n;
    if (index.IsUpdate(n) && index.depth(n) > 0) updates.push_back(n);
    for (const TensorId& input : index.inputs(n)) successors[input.node].push_back(n);
    for (int input : index.control_inputs(n)) successors[input].push_back(n);
  }
  const auto earlier = [&](int a, int b) { return index.position(a) < index.position(b); };
  std::sort(updates.begin(), updates.end(), earlier);
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
