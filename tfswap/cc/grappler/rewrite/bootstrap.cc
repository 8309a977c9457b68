#include "grappler/rewrite/bootstrap.h"

#include <algorithm>
#include <map>
#include <utility>

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

// The ops of the chain, by device and context, in order.
class ChainOps {
 public:
  ChainOps(const GraphIndex& index, const Edges& chain) : index_(index) {
    std::vector<int> ops;
    for (const auto& [earlier, later] : chain) {
      ops.push_back(index.Find(earlier));
      ops.push_back(index.Find(later));
    }
    std::sort(ops.begin(), ops.end(),
              [&](int a, int b) { return index.position(a) < index.position(b); });
    ops.erase(std::unique(ops.begin(), ops.end()), ops.end());
    for (int op : ops) ops_[{index.node(op).device(), index.context(op)}].push_back(op);
  }

  bool Has(int n) const { return ops_.count({index_.node(n).device(), index_.context(n)}) > 0; }

  // Return the last op before `reader` and its twin, and after position `above`; -1 if there is
  // none. With an earlier trigger, the tensor would take memory from the ops between. On a GPU the
  // copy starts early all the same: the host runs ahead of it.
  int TriggerBefore(int reader, int above) const {
    const std::vector<int>& ops = ops_.at({index_.node(reader).device(), index_.context(reader)});
    int first = index_.position(reader);
    if (index_.Twin(reader) >= 0) first = std::min(first, index_.position(index_.Twin(reader)));
    auto at = std::lower_bound(ops.begin(), ops.end(), first, [&](int op, int position) {
      return index_.position(op) < position;
    });
    while (at != ops.begin() && index_.position(*--at) > above) {
      if (index_.AliveWith(*at, reader)) return *at;
    }
    return -1;
  }

 private:
  const GraphIndex& index_;
  std::map<std::pair<std::string, int>, std::vector<int>> ops_;
};

SwapSpec SwapsOf(const GraphIndex& index, TensorId root, const std::vector<Access>& readers,
                 const ChainOps& chain) {
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
    } else if (chain.Has(reader.node) &&
               (index.RunsInTurn(reader.node) || index.MayFuse(reader.node))) {
      trigger = chain.TriggerBefore(reader.node, last_position);
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
  const ChainOps ops(index, chain);
  std::vector<SwapSpec> swaps;
  for (int n = 0; n < index.size(); ++n) {
    if (!index.IsSwappableProducer(n) || index.IsAlias(n)) continue;
    for (int port = 0; port < index.outputs(n); ++port) {
      const TensorId root{n, port};
      if (!index.InDeviceMemory(root)) continue;
      if (!tensorflow::DataTypeCanUseMemcpy(index.OutputType(root))) continue;
      SwapSpec swap = SwapsOf(index, root, Readers(index, root), ops);
      if (!swap.returns.empty()) swaps.push_back(std::move(swap));
    }
  }
  return swaps;
}

Edges RacingTriggers(const GraphIndex& index) {
  Edges found;
  for (int n = 0; n < index.size(); ++n) {
    if (!index.IsRacing(n)) continue;
    const int trigger = index.TriggerBefore(n, kLookAhead, /*above_depth=*/-1);
    if (trigger >= 0) found.emplace_back(index.node(trigger).name(), index.node(n).name());
  }
  return found;
}

}  // namespace tfswap
