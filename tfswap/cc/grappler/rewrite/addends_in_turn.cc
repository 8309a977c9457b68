#include "grappler/rewrite/addends_in_turn.h"

#include <algorithm>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/types.h"

namespace tfswap {

using ::tensorflow::GraphDef;
using ::tensorflow::NodeDef;

namespace {

constexpr int kManyAddends = 4;
constexpr int kAtOnce = 8;  // tensors that AddN's kernel reads in a pass

bool IsLongSum(const NodeDef& node) {
  const auto type = node.attr().find("T");
  const auto count = node.attr().find("N");
  return node.op() == "AddN" && type != node.attr().end() && count != node.attr().end() &&
         count->second.i() >= kManyAddends && tensorflow::DataTypeIsFloating(type->second.type());
}

class AddendsInTurn {
 public:
  explicit AddendsInTurn(const GraphIndex& index)
      : index_(index), result_(index.graph()), awaited_(index.size(), false) {
    for (int n = 0; n < index.size(); ++n) {
      for (int input : index.control_inputs(n)) awaited_[input] = true;
    }
  }

  GraphDef Make() {
    for (int n = 0; n < index_.size(); ++n) {
      if (IsLongSum(index_.node(n)) && !IsSmall(n)) Split(n);
    }
    return std::move(result_);
  }

 private:
  // Return whether all addends are results of reductions, such as the squares of a norm.
  bool IsSmall(int sum) const {
    static const auto* reductions =
        new std::unordered_set<std::string>{"L2Loss", "Max", "Mean", "Min", "Prod", "Sum"};
    const auto& addends = index_.inputs(sum);
    return std::all_of(addends.begin(), addends.end(), [&](TensorId addend) {
      return reductions->count(index_.node(index_.Root(addend).node).op()) > 0;
    });
  }

  void Split(int sum) {
    const NodeDef& node = index_.node(sum);
    const std::vector<TensorId>& addends = index_.inputs(sum);
    const int count = static_cast<int>(addends.size());
    int first = count % kAtOnce;
    if (first < 2) first += kAtOnce;
    std::string total = Named(addends[0]);
    int made = 0;
    const auto add = [&](const std::string& a, const std::string& b, bool is_last) {
      NodeDef* added = is_last ? result_.mutable_node(sum) : result_.add_node();
      const std::string name = is_last ? node.name() : absl::StrCat(node.name(), "/add_", made++);
      added->Clear();
      added->set_name(name);
      added->set_op("AddV2");
      added->set_device(node.device());
      added->add_input(a);
      added->add_input(b);
      (*added->mutable_attr())["T"] = node.attr().at("T");
      return name;
    };
    for (int k = 1; k < first; ++k) {
      if (k > 1) MakeAfter(addends[k], total);
      total = add(total, Named(addends[k]), k + 1 == count);
    }
    for (int begin = first; begin < count; begin += kAtOnce) {
      MakeAfter(addends[begin], total);
      std::string part = Named(addends[begin]);
      for (int k = begin + 1; k < begin + kAtOnce; ++k) {
        MakeAfter(addends[k], k == begin + 1 ? total : part);
        part = add(part, Named(addends[k]), false);
      }
      total = add(total, part, begin + kAtOnce == count);
    }
    for (int input : index_.control_inputs(sum)) {
      result_.mutable_node(sum)->add_input(absl::StrCat("^", index_.node(input).name()));
    }
  }

  std::string Named(TensorId tensor) const {
    return InputName(index_.node(tensor.node).name(), tensor.port);
  }

  // Let the gradient of a slice wait for an addition. Nothing but its sum waits for it, so that
  // this closes no cycle.
  void MakeAfter(TensorId addend, const std::string& addition) {
    const int n = addend.node;
    if (index_.node(n).op() != "StridedSliceGrad" || index_.consumers(n).size() != 1 ||
        awaited_[n]) {
      return;
    }
    result_.mutable_node(n)->add_input(absl::StrCat("^", addition));
  }

  const GraphIndex& index_;
  GraphDef result_;
  std::vector<bool> awaited_;  // by node: whether another one has a control edge from it
};

}  // namespace

bool HasLongSums(const GraphDef& graph) {
  return std::any_of(graph.node().begin(), graph.node().end(), IsLongSum);
}

GraphDef WithAddendsInTurn(const GraphIndex& index) {
  return index.ManagesGpu() ? index.graph() : AddendsInTurn(index).Make();
}

}  // namespace tfswap
