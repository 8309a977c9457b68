#include "grappler/index/accumulation_races.h"

#include <algorithm>
#include <map>

#include "grappler/index/graph_index.h"

namespace tfswap {

namespace {

// Two addends give the same sum in either order.
constexpr size_t kMinAddends = 3;

// Return, by node, the number of `ops` that depend on it.
std::vector<size_t> NeededBy(const GraphIndex& index, const std::vector<int>& ops) {
  std::vector<size_t> needed_by(index.size(), 0);
  for (int op : ops) {
    std::vector<bool> seen(index.size(), false);
    std::vector<int> left = {op};
    seen[op] = true;
    while (!left.empty()) {
      const int n = left.back();
      left.pop_back();
      ++needed_by[n];
      const auto visit = [&](int input) {
        if (!seen[input]) left.push_back(input);
        seen[input] = true;
      };
      for (const TensorId& input : index.inputs(n)) visit(input.node);
      for (int input : index.control_inputs(n)) visit(input);
    }
  }
  return needed_by;
}

}  // namespace

std::vector<bool> AccumulationRaces(const GraphIndex& index) {
  std::map<int, std::vector<int>> sums;  // by accumulator
  for (int n = 0; n < index.size(); ++n) {
    if (index.node(n).op() == "AssignAdd" && index.inputs(n).size() == 2) {
      sums[index.inputs(n)[0].node].push_back(n);
    }
  }
  std::vector<bool> racing(index.size(), false);
  for (const auto& [accumulator, additions] : sums) {
    if (additions.size() < kMinAddends) continue;
    std::vector<int> addends;
    for (int n : additions) {
      racing[n] = true;
      addends.push_back(index.inputs(n)[1].node);
    }
    const std::vector<size_t> needed_by = NeededBy(index, addends);
    int common = -1;
    for (int n = 0; n < index.size(); ++n) {
      if (needed_by[n] == addends.size()) common = std::max(common, index.position(n));
    }
    for (int n = 0; n < index.size(); ++n) {
      if (needed_by[n] > 0 && index.position(n) > common) racing[n] = true;
    }
  }
  return racing;
}

}  // namespace tfswap
