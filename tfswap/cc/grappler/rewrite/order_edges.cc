#include "grappler/rewrite/order_edges.h"

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <unordered_map>
#include <unordered_set>

#include "absl/strings/str_cat.h"
#include "grappler/index/accumulation_races.h"
#include "tensorflow/core/graph/tensor_id.h"

namespace tfswap {

namespace {

constexpr int kMinDelay = 3;  // milestones
constexpr int kSlack = 1;     // milestone

// Return which nodes depend on an update at depth 0.
std::vector<bool> BehindEarlyUpdates(const GraphIndex& index) {
  std::vector<bool> behind(index.size(), false);
  const auto counts = [&](int n) {
    return behind[n] || (index.IsUpdate(n) && index.depth(n) == 0);
  };
  for (int n : index.order()) {
    for (const TensorId& input : index.inputs(n)) behind[n] = behind[n] || counts(input.node);
    for (int input : index.control_inputs(n)) behind[n] = behind[n] || counts(input);
  }
  return behind;
}

// Return which nodes have a control edge to another node.
std::vector<bool> WithControlSuccessors(const GraphIndex& index) {
  std::vector<bool> found(index.size(), false);
  for (int n = 0; n < index.size(); ++n) {
    for (int input : index.control_inputs(n)) found[input] = true;
  }
  return found;
}

// Return the first ops of the work that is done for the update `n` alone.
std::vector<int> BeginsOf(const GraphIndex& index, int n, const std::vector<bool>& awaited) {
  const auto is_work = [&](TensorId input) {
    const int at = input.node;
    return index.depth(at) == 0 && !awaited[at] && index.consumers(at).size() == 1 &&
           index.IsOrderable(at) && !index.inputs(at).empty() &&
           index.node(at).op() != "ReadVariableOp";
  };
  std::vector<int> begins, open = {n};
  while (!open.empty()) {
    const int at = open.back();
    open.pop_back();
    bool is_first = true;
    for (const TensorId& input : index.inputs(at)) {
      if (!is_work(input)) continue;
      open.push_back(input.node);
      is_first = false;
    }
    if (is_first) begins.push_back(at);
  }
  return begins;
}

// Delay updates that depend on variables alone until the old value has been read.
void DelayEarlyUpdates(const GraphIndex& index, Edges* edges) {
  const std::vector<bool> behind = BehindEarlyUpdates(index);
  const std::vector<bool> awaited = WithControlSuccessors(index);
  for (int n = 0; n < index.size(); ++n) {
    if (!index.IsUpdate(n) || index.depth(n) != 0 || !index.MayWait(n)) continue;
    const TensorId variable = index.Root(index.inputs(n)[0]);
    std::vector<int> begins;
    for (const GraphIndex::Consumer& user : index.consumers(variable.node)) {
      if (user.port != variable.port || index.node(user.node).op() != "ReadVariableOp") continue;
      for (const GraphIndex::Consumer& reader : index.consumers(user.node)) {
        const int before = reader.node;
        if (index.depth(before) == 0 || behind[before] || index.MayFuse(before)) continue;
        if (!index.AliveWith(before, n)) continue;
        if (begins.empty()) begins = BeginsOf(index, n, awaited);
        for (int begin : begins) {
          edges->emplace_back(index.node(before).name(), index.node(begin).name());
        }
      }
    }
  }
}

}  // namespace

Edges Delays(const GraphIndex& index) {
  Edges edges;
  DelayEarlyUpdates(index, &edges);
  static const auto* cheap = new std::unordered_set<std::string>{
      "AddV2", "Cast", "Mul", "Neg", "RealDiv", "Rsqrt", "Sqrt", "Square", "Sub", "Transpose"};
  for (int n = 0; n < index.size(); ++n) {
    if (index.depth(n) != 0 || cheap->count(index.node(n).op()) == 0 || !index.MayWait(n)) continue;
    const auto& inputs = index.inputs(n);
    const bool of_variable = std::any_of(inputs.begin(), inputs.end(), [&](TensorId input) {
      return index.node(index.Root(input).node).op() == "ReadVariableOp";
    });
    if (!of_variable || index.consumers(n).empty()) continue;
    int first = -1;
    for (const GraphIndex::Consumer& consumer : index.consumers(n)) {
      if (first < 0 || index.depth(consumer.node) < index.depth(first)) first = consumer.node;
    }
    if (index.depth(first) < kMinDelay) continue;
    const int trigger = index.TriggerBefore(first, 1, 0);
    if (trigger >= 0 && index.AliveWith(trigger, n)) {
      edges.emplace_back(index.node(trigger).name(), index.node(n).name());
    }
  }
  return edges;
}

Edges PromptUpdates(const GraphIndex& index) {
  Edges edges;
  // The milestones on the longest path through the graph, by depth.
  int last = 0;
  for (int n = 0; n < index.size(); ++n) {
    if (index.depth(n) > index.depth(last)) last = n;
  }
  std::vector<int> spine(index.depth(last) + 1, -1);
  for (int n = index.IsMilestone(last) ? last : index.MilestoneBefore(last, 1); n >= 0;
       n = index.MilestoneBefore(n, 1)) {
    spine[index.depth(n)] = n;
  }
  for (int n = 0; n < index.size(); ++n) {
    if (!index.IsUpdate(n) || index.depth(n) == 0) continue;
    size_t depth = index.depth(n) + kSlack;
    while (depth < spine.size() && spine[depth] >= 0 && index.MayFuse(spine[depth])) ++depth;
    if (depth >= spine.size() || spine[depth] < 0) continue;
    if (!index.MayWait(spine[depth]) || !index.AliveWith(n, spine[depth])) continue;
    edges.emplace_back(index.node(n).name(), index.node(spine[depth]).name());
  }
  return edges;
}

namespace {

// Return the last input of `reader` other than `n`; -1 if all others are constants.
int LastBeside(const GraphIndex& index, int n, int reader) {
  int last = -1;
  for (const TensorId& other : index.inputs(reader)) {
    if (other.node == n || index.node(other.node).op() == "Const") continue;
    if (last < 0 || index.position(other.node) > index.position(last)) last = other.node;
  }
  return last;
}

}  // namespace

Edges LateBroadcasts(const GraphIndex& index) {
  const std::vector<bool> awaited = WithControlSuccessors(index);
  Edges edges;
  for (int n = 0; n < index.size(); ++n) {
    const std::string& op = index.node(n).op();
    if (op != "Tile" && op != "BroadcastTo") continue;
    // Follow scalings by constants to a reader with another input. With one successor each, nothing
    // that this reader waits for can wait for the broadcast: no edge closes a cycle.
    int last = -1;
    for (int at = n; last < 0 && !awaited[at] && index.consumers(at).size() == 1;) {
      const int reader = index.consumers(at)[0].node;
      last = LastBeside(index, at, reader);
      at = reader;
    }
    if (last >= 0 && index.position(last) > index.position(n) && index.AliveWith(last, n) &&
        index.IsRewirable(last)) {
      edges.emplace_back(index.node(last).name(), index.node(n).name());
    }
  }
  return edges;
}

namespace {

// Return, by op, the position before which it runs. An op that waits for no milestone (it draws the
// numbers of a dropout, say) runs just before the first op that waits for it: its outputs would
// take memory for most of the step. A loop waits for all that it needs: the zeros in which it sums
// up a gradient are made when it begins.
std::vector<int> LatePositions(const GraphIndex& index) {
  constexpr int kNever = std::numeric_limits<int>::max();
  std::vector<int> first(index.size(), kNever), late(index.size());
  for (auto n = index.order().rbegin(); n != index.order().rend(); ++n) {
    const bool is_early = index.depth(*n) == 0 && first[*n] < kNever;
    late[*n] = is_early ? first[*n] : index.position(*n);
    for (int entry : index.EntriesBeside(*n)) late[*n] = std::max(late[*n], index.position(entry));
    for (const TensorId& input : index.inputs(*n)) {
      first[input.node] = std::min(first[input.node], late[*n]);
    }
    for (int input : index.control_inputs(*n)) first[input] = std::min(first[input], late[*n]);
  }
  return late;
}

}  // namespace

Edges Chain(const GraphIndex& index) {
  const std::vector<int> late = LatePositions(index);
  std::vector<int> order;
  for (int n = 0; n < index.size(); ++n) {
    if (index.RunsInTurn(n)) order.push_back(n);
  }
  std::sort(order.begin(), order.end(), [&](int a, int b) {
    return std::make_pair(late[a], index.position(a)) < std::make_pair(late[b], index.position(b));
  });
  Edges edges;
  std::map<std::pair<std::string, int>, int> last;  // by device and context
  for (const int n : order) {
    const auto [before, first] =
        last.emplace(std::make_pair(index.node(n).device(), index.context(n)), n);
    if (first) continue;
    edges.emplace_back(index.node(before->second).name(), index.node(n).name());
    before->second = n;
  }
  return edges;
}

Edges OfSums(const GraphIndex& index, const Edges& edges) {
  std::unordered_map<int, size_t> sum_of;  // by addition
  const std::vector<std::vector<int>> sums = Accumulations(index);
  for (size_t sum = 0; sum < sums.size(); ++sum) {
    for (int n : sums[sum]) sum_of.emplace(n, sum);
  }
  Edges found;
  for (const auto& [before, after] : edges) {
    const auto from = sum_of.find(index.Find(before)), to = sum_of.find(index.Find(after));
    if (from == sum_of.end() || to == sum_of.end() || from->second != to->second) continue;
    const std::vector<int>& known = index.control_inputs(to->first);
    if (std::find(known.begin(), known.end(), from->first) != known.end()) continue;
    found.emplace_back(before, after);
  }
  return found;
}

Edges EdgesThroughSwaps(const GraphIndex& index, const tensorflow::GraphDef& rewritten) {
  std::unordered_map<std::string, int> added;
  for (int n = 0; n < rewritten.node_size(); ++n) {
    const std::string& name = rewritten.node(n).name();
    if (index.Find(name) < 0) added.emplace(name, n);
  }
  // Return the index's nodes that come before the added node `n`, directly or through others.
  std::unordered_map<int, std::set<int>> known;
  const auto before = [&](int n, const auto& self) -> const std::set<int>& {
    const auto [found, is_new] = known.try_emplace(n);
    if (!is_new) return found->second;
    std::set<int> nodes;
    for (const std::string& input : rewritten.node(n).input()) {
      const std::string name(tensorflow::ParseTensorName(input).node());
      if (const int node = index.Find(name); node >= 0) {
        nodes.insert(node);
      } else if (const auto other = added.find(name); other != added.end()) {
        const std::set<int>& earlier = self(other->second, self);
        nodes.insert(earlier.begin(), earlier.end());
      }
    }
    return known[n] = std::move(nodes);
  };
  Edges edges;
  for (const tensorflow::NodeDef& node : rewritten.node()) {
    const int to = index.Find(node.name());
    if (to < 0) continue;
    std::set<int> from;
    for (const std::string& input : node.input()) {
      const tensorflow::TensorId id = tensorflow::ParseTensorName(input);
      const std::string name(id.node());
      if (const auto other = added.find(name); other != added.end()) {
        const std::set<int>& earlier = before(other->second, before);
        from.insert(earlier.begin(), earlier.end());
      } else if (id.index() < 0) {
        from.insert(index.Find(name));
      }
    }
    for (int n : index.control_inputs(to)) from.erase(n);
    for (int n : from) edges.emplace_back(index.node(n).name(), node.name());
  }
  return edges;
}

tensorflow::GraphDef WithEdges(const GraphIndex& index, tensorflow::GraphDef graph,
                               const Edges& edges) {
  for (const auto& [before, after] : edges) {
    graph.mutable_node(index.Find(after))->add_input(absl::StrCat("^", before));
  }
  return graph;
}

}  // namespace tfswap
