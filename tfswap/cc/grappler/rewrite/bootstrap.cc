#include "grappler/rewrite/bootstrap.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace tfswap {

namespace {

constexpr int kMinAbsence = 3;  // milestones
constexpr int kLookAhead = 1;   // milestones; more would take memory from the next op

struct Access {
  int node;
  int depth;
  int position;
  bool own;  // whether depth and position are its own, not those of its twin
};

// Return all readers of a tensor and of its aliases, in order; empty if one of them must keep it.
std::vector<Access> Readers(const GraphIndex& index, TensorId root) {
  std::vector<Access> readers;
  std::vector<TensorId> reached = {root};
  for (size_t i = 0; i < reached.size(); ++i) {
    for (const GraphIndex::Consumer& consumer : index.consumers(reached[i].node)) {
      if (consumer.port != reached[i].port) continue;
      if (!index.IsRewirable(consumer.node) || !index.SameFrame(root.node, consumer.node)) {
        return {};
      }
      if (consumer.input == 0 && index.IsAlias(consumer.node)) {
        reached.push_back({consumer.node, 0});
      } else {
        // Fused ops read at the same time: when the later one can.
        int last = consumer.node;
        const int twin = index.Twin(last);
        if (twin >= 0 && index.position(twin) > index.position(last)) last = twin;
        readers.push_back(
            {consumer.node, index.depth(last), index.position(last), last == consumer.node});
      }
    }
  }
  std::sort(readers.begin(), readers.end(), [](const Access& a, const Access& b) {
    return a.position != b.position ? a.position < b.position : a.own && !b.own;
  });
  readers.erase(std::unique(readers.begin(), readers.end(),
                            [](const Access& a, const Access& b) { return a.node == b.node; }),
                readers.end());
  return readers;
}

// By op, the one before it in the chain of ops; -1 for ops that are not in it.
std::vector<int> ChainPredecessors(const GraphIndex& index, const Edges& chain) {
  std::vector<int> before(index.size(), -1);
  for (const auto& [earlier, later] : chain) before[index.Find(later)] = index.Find(earlier);
  return before;
}

// Return the last op of the chain before `reader` and after position `above`; -1 if there is none.
// With an earlier trigger, the tensor would take memory from the ops between. On a GPU the copy
// starts early all the same: the host runs ahead of it.
int ChainTrigger(const GraphIndex& index, const std::vector<int>& before, int reader, int above) {
  for (int at = before[reader]; at >= 0 && index.position(at) > above; at = before[at]) {
    if (index.AliveWith(at, reader)) return at;
  }
  return -1;
}

SwapSpec SwapsOf(const GraphIndex& index, TensorId root, const std::vector<Access>& readers,
                 const std::vector<int>& before_in_chain) {
  SwapSpec swap;
  swap.tensor = absl::StrCat(index.node(root.node).name(), ":", root.port);
  swap.lazy = true;
  int last_depth = index.depth(root.node);
  int last_position = index.position(root.node);
  for (size_t i = 0; i < readers.size(); ++i) {
    const Access& reader = readers[i];
    const int absence = reader.depth - last_depth;
    int trigger = -1;
    if (i > 0 && index.Twin(reader.node) == readers[i - 1].node) {
      // Fused with the reader before: uses its swap-in.
    } else if (absence < kMinAbsence && index.IsRacing(reader.node)) {
      // Must not wait for a swap-in.
    } else if (before_in_chain[reader.node] >= 0) {
      trigger = ChainTrigger(index, before_in_chain, reader.node, last_position);
    } else if (absence >= kMinAbsence) {
      trigger = index.TriggerBefore(reader.node, kLookAhead, reader.depth - absence);
    } else {
      trigger = index.NearTriggerBefore(reader.node, last_position);
    }
    last_depth = std::max(last_depth, reader.depth);
    last_position = reader.position;
    bool alive = trigger >= 0;
    for (size_t j = i; alive && j < readers.size(); ++j) {
      alive = index.AliveWith(trigger, readers[j].node);
    }
    if (alive) {
      swap.returns.push_back({index.node(trigger).name(), {}, 0});
      if (swap.returns.size() == 1) {
        swap.next_use = reader.position;
      } else {
        swap.returns[swap.returns.size() - 2].next_use = reader.position;
      }
    }
    if (!swap.returns.empty()) {
      swap.returns.back().consumers.push_back(index.node(reader.node).name());
    }
  }
  return swap;
}

}  // namespace

std::vector<SwapSpec> Bootstrap(const GraphIndex& index, const Edges& chain) {
  const std::vector<int> before_in_chain = ChainPredecessors(index, chain);
  std::vector<SwapSpec> swaps;
  for (int n = 0; n < index.size(); ++n) {
    if (!index.IsSwappableProducer(n) || index.IsAlias(n)) continue;
    for (int port = 0; port < index.outputs(n); ++port) {
      const TensorId root{n, port};
      if (!index.InDeviceMemory(root)) continue;
      if (!tensorflow::DataTypeCanUseMemcpy(index.OutputType(root))) continue;
      SwapSpec swap = SwapsOf(index, root, Readers(index, root), before_in_chain);
      if (!swap.returns.empty()) swaps.push_back(std::move(swap));
    }
  }
  return swaps;
}

}  // namespace tfswap
