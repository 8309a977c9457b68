#include "grappler/index/accumulation_races.h"

#include <algorithm>
#include <map>
#include <utility>

#include "grappler/index/graph_index.h"

namespace tfswap {

namespace {

// Two addends give the same sum in either order.
constexpr size_t kMinAddends = 3;

// Return, by node, whether `op` depends on it. It depends on itself.
std::vector<bool> NeededBy(const GraphIndex& index, int op) {
  std::vector<bool> needed(index.size(), false);
  std::vector<int> left = {op};
  needed[op] = true;
  while (!left.empty()) {
    const int n = left.back();
    left.pop_back();
    const auto visit = [&](int input) {
      if (!needed[input]) left.push_back(input);
      needed[input] = true;
    };
    for (const TensorId& input : index.inputs(n)) visit(input.node);
    for (int input : index.control_inputs(n)) visit(input);
  }
  return needed;
}

// Mark what one addend needs after the last op that it and its rivals all need. Its rivals are the
// addends that neither depend on it nor are needed by it: they may arrive before it or after it.
void MarkRace(const GraphIndex& index, const std::vector<int>& addends,
              const std::vector<std::vector<bool>>& needed, size_t addend,
              std::vector<bool>* racing) {
  std::vector<size_t> rivals;
  for (size_t other = 0; other < addends.size(); ++other) {
    if (!needed[addend][addends[other]] && !needed[other][addends[addend]]) rivals.push_back(other);
  }
  if (rivals.empty()) return;
  for (auto n = index.order().rbegin(); n != index.order().rend(); ++n) {
    if (!needed[addend][*n]) continue;
    if (std::all_of(rivals.begin(), rivals.end(), [&](size_t r) { return needed[r][*n]; })) return;
    (*racing)[*n] = true;
  }
}

// Return whether the additions wait for each other, each for those before it.
bool InOrder(const GraphIndex& index, const std::vector<int>& additions) {
  std::vector<int> sorted = additions;
  std::sort(sorted.begin(), sorted.end(),
            [&](int a, int b) { return index.position(a) < index.position(b); });
  for (size_t k = 1; k < sorted.size(); ++k) {
    const std::vector<int>& before = index.control_inputs(sorted[k]);
    if (std::find(before.begin(), before.end(), sorted[k - 1]) == before.end()) return false;
  }
  return true;
}

}  // namespace

std::vector<std::vector<int>> Accumulations(const GraphIndex& index) {
  std::map<int, std::vector<int>> sums;  // by accumulator
  for (int n = 0; n < index.size(); ++n) {
    if (index.node(n).op() == "AssignAdd" && index.inputs(n).size() == 2) {
      sums[index.inputs(n)[0].node].push_back(n);
    }
  }
  std::vector<std::vector<int>> found;
  for (auto& [accumulator, additions] : sums) {
    if (additions.size() >= kMinAddends) found.push_back(std::move(additions));
  }
  return found;
}

std::vector<bool> AccumulationRaces(const GraphIndex& index) {
  std::vector<bool> racing(index.size(), false);
  for (const std::vector<int>& additions : Accumulations(index)) {
    if (InOrder(index, additions)) continue;
    std::vector<int> addends;
    for (int n : additions) {
      racing[n] = true;
      addends.push_back(index.inputs(n)[1].node);
    }
    std::vector<std::vector<bool>> needed;
    for (int addend : addends) needed.push_back(NeededBy(index, addend));
    for (size_t k = 0; k < addends.size(); ++k) {
      MarkRace(index, addends, needed, k, &racing);
    }
  }
  return racing;
}

}  // namespace tfswap
