#include "grappler/sections/restore_addn.h"

#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "grappler/index/input_names.h"

namespace tfswap {

using ::tensorflow::GraphDef;
using ::tensorflow::NodeDef;

namespace {

class AddNRestorer {
 public:
  explicit AddNRestorer(const GraphDef& graph) : graph_(graph) {
    for (const NodeDef& node : graph.node()) {
      nodes_[node.name()] = &node;
      for (const std::string& input : node.input()) ++readers_[NodeOf(input)];
    }
  }

  GraphDef Restore() {
    std::unordered_map<std::string, NodeDef> sums;
    for (const NodeDef& node : graph_.node()) {
      NodeDef sum;
      if (node.op() == "DestroyTemporaryVariable" && Undo(node, &sum)) sums[node.name()] = sum;
    }
    GraphDef plain;
    for (const NodeDef& node : graph_.node()) {
      if (gone_.count(node.name()) > 0) continue;
      const auto sum = sums.find(node.name());
      *plain.add_node() = sum == sums.end() ? node : std::move(sum->second);
    }
    *plain.mutable_library() = graph_.library();
    *plain.mutable_versions() = graph_.versions();
    return plain;
  }

 private:
  const NodeDef* Find(const std::string& input) const {
    const auto found = nodes_.find(NodeOf(input));
    return found == nodes_.end() ? nullptr : found->second;
  }

  //   variable, zeros -> Assign -+-> AssignAdd (each addend) --^-> DestroyTemporaryVariable
  //                              +---------------------------------^
  bool Undo(const NodeDef& end, NodeDef* sum) {
    if (end.input_size() < 2 || end.attr().count("T") == 0) return false;
    const NodeDef* begin = Find(end.input(0));
    if (begin == nullptr || begin->op() != "Assign" || begin->input_size() < 2) return false;
    const NodeDef* variable = Find(begin->input(0));
    const NodeDef* zeros = Find(begin->input(1));
    if (variable == nullptr || variable->op() != "TemporaryVariable" || zeros == nullptr) {
      return false;
    }
    std::vector<std::string> addends, controls, gone = {begin->name(), variable->name()};
    for (int i = 1; i < end.input_size(); ++i) {
      const NodeDef* addition = Find(end.input(i));
      const bool adds = addition != nullptr && IsControl(end.input(i)) &&
                        addition->op() == "AssignAdd" && addition->input_size() >= 2 &&
                        NodeOf(addition->input(0)) == begin->name() &&
                        readers_[addition->name()] == 1;
      if (!adds) {
        controls.push_back(end.input(i));
        continue;
      }
      addends.push_back(addition->input(1));
      gone.push_back(addition->name());
    }
    // The variable must have no other reader.
    const auto readers = static_cast<int>(addends.size()) + 1;
    if (addends.empty() || readers_[begin->name()] != readers || readers_[variable->name()] != 1) {
      return false;
    }
    if (readers_[zeros->name()] == 1) gone.push_back(zeros->name());
    *sum = end;
    sum->set_op("AddN");
    sum->clear_input();
    for (const std::string& input : addends) sum->add_input(input);
    for (const std::string& input : controls) sum->add_input(input);
    sum->mutable_attr()->erase("var_name");
    (*sum->mutable_attr())["N"].set_i(static_cast<int64_t>(addends.size()));
    gone_.insert(gone.begin(), gone.end());
    return true;
  }

  const GraphDef& graph_;
  std::unordered_map<std::string, const NodeDef*> nodes_;
  std::unordered_map<std::string, int> readers_;
  std::unordered_set<std::string> gone_;
};

}  // namespace

GraphDef RestoreAddN(const GraphDef& graph) { return AddNRestorer(graph).Restore(); }

}  // namespace tfswap
