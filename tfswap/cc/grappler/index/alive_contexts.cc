#include "grappler/index/alive_contexts.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <string>
#include <tuple>
#include <utility>

#include "grappler/index/graph_index.h"

namespace tfswap {

AliveContexts::AliveContexts(const GraphIndex& index, const LoopFrames& loops,
                             const std::vector<int>& order) {
  // A guard is (the predicate of the Switch, its output); guards inside of a loop end with it.
  std::map<std::tuple<int, int, int>, int> guard_ids;
  std::vector<int> guard_frame_depth;
  std::map<std::pair<int, std::vector<int>>, int> context_ids;
  context_.assign(index.size(), 0);
  std::vector<std::vector<int>> guards(index.size());
  for (int n : order) {
    std::vector<std::vector<int>> arriving;
    for (const TensorId& input : index.inputs(n)) {
      if (IsBackEdge(index.node(input.node), index.node(n))) continue;
      std::vector<int> with = guards[input.node];
      const std::string& op = index.node(input.node).op();
      if (op == "Switch" || op == "RefSwitch" || op == "_SwitchN") {
        const TensorId predicate =
            index.inputs(input.node).size() > 1 ? index.inputs(input.node)[1] : TensorId{};
        const auto key = std::make_tuple(predicate.node, predicate.port, input.port);
        auto [it, inserted] = guard_ids.try_emplace(key, guard_ids.size());
        if (inserted) guard_frame_depth.push_back(loops.depth(input.node));
        with.push_back(it->second);
      }
      std::sort(with.begin(), with.end());
      with.erase(std::unique(with.begin(), with.end()), with.end());
      arriving.push_back(std::move(with));
    }
    const bool merge = index.node(n).op() == "Merge" || index.node(n).op() == "RefMerge";
    std::vector<int> result;
    for (size_t i = 0; i < arriving.size(); ++i) {
      std::vector<int> joined;
      if (i == 0) {
        joined = arriving[0];
      } else if (merge) {
        std::set_intersection(result.begin(), result.end(), arriving[i].begin(), arriving[i].end(),
                              std::back_inserter(joined));
      } else {
        std::set_union(result.begin(), result.end(), arriving[i].begin(), arriving[i].end(),
                       std::back_inserter(joined));
      }
      result = std::move(joined);
    }
    for (int input : index.control_inputs(n)) {
      std::vector<int> joined;
      std::set_union(result.begin(), result.end(), guards[input].begin(), guards[input].end(),
                     std::back_inserter(joined));
      result = std::move(joined);
    }
    if (IsExit(index.node(n))) {
      const int inside = loops.depth(n);
      result.erase(std::remove_if(result.begin(), result.end(),
                                  [&](int g) { return guard_frame_depth[g] >= inside; }),
                   result.end());
    }
    guards[n] = std::move(result);
    auto [it, inserted] =
        context_ids.try_emplace({loops.frame(n), guards[n]}, static_cast<int>(context_ids.size()));
    if (inserted) guards_.push_back(guards[n]);
    context_[n] = it->second;
  }
}

bool AliveContexts::GuardsAreSubset(int a, int b) const {
  const std::vector<int>& of_a = guards_[context_[a]];
  const std::vector<int>& of_b = guards_[context_[b]];
  return std::includes(of_b.begin(), of_b.end(), of_a.begin(), of_a.end());
}

}  // namespace tfswap
