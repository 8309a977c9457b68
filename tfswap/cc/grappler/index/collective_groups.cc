#include "grappler/index/collective_groups.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace tfswap {

namespace {

constexpr int kGroupKey = 2;  // input of newer ops

bool IsCollective(const std::string& op) {
  return absl::StartsWith(op, "Collective") || absl::StartsWith(op, "NcclAllReduce");
}

// Ops of one group have the same kind, and the same group key if it is known.
std::string GroupOf(const GraphIndex& index, int n) {
  absl::string_view kind = index.node(n).op();
  absl::ConsumeSuffix(&kind, "V3");
  absl::ConsumeSuffix(&kind, "V2");
  absl::ConsumeSuffix(&kind, "Send");
  absl::ConsumeSuffix(&kind, "Recv");
  std::string group(kind);
  const auto key = index.node(n).attr().find("group_key");
  if (key != index.node(n).attr().end()) return absl::StrCat(group, " ", key->second.i());
  if (index.inputs(n).size() <= kGroupKey) return group;
  const auto& input = index.node(index.Root(index.inputs(n)[kGroupKey]).node);
  const auto value = input.attr().find("value");
  if (input.op() != "Const" || value == input.attr().end()) return group;
  return absl::StrCat(group, " ", value->second.tensor().SerializeAsString());
}

}  // namespace

std::vector<int> CollectiveGroups(const GraphIndex& index) {
  std::map<std::string, std::map<std::string, std::vector<int>>> groups;  // by device
  for (int n = 0; n < index.size(); ++n) {
    if (IsCollective(index.node(n).op())) {
      groups[GroupOf(index, n)][index.node(n).device()].push_back(n);
    }
  }
  std::vector<int> groups(index.size());
  std::iota(groups.begin(), groups.end(), 0);
  for (auto& [group, devices] : groups) {
    std::vector<int> first;
    for (auto& [device, ops] : devices) {
      std::sort(ops.begin(), ops.end(),
                [&](int a, int b) { return index.position(a) < index.position(b); });
      for (size_t i = 0; i < ops.size(); ++i) {
        if (i == first.size()) first.push_back(ops[i]);
        groups[ops[i]] = first[i];
      }
    }
  }
  return groups;
}

}  // namespace tfswap
