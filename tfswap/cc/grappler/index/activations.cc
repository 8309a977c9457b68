#include "grappler/index/activations.h"

#include <algorithm>
#include <unordered_set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "grappler/index/graph_index.h"

namespace tfswap {

namespace {

using OpNames = std::unordered_set<std::string>;

bool IsOneOf(const OpNames& names, const std::string& op) { return names.count(op) > 0; }

bool IsIterator(const std::string& op) {
  static const auto* ops =
      new OpNames{"IteratorGetNext", "IteratorGetNextAsOptional", "OptionalGetValue"};
  return IsOneOf(*ops, op);
}

// Arguments are captured values, not the batch, if the graph has an iterator.
bool IsArgument(const GraphIndex& index, int n) {
  static const auto* ops = new OpNames{"_Arg", "_DeviceArg", "Placeholder"};
  return IsOneOf(*ops, index.node(n).op()) && index.OutputType({n, 0}) != tensorflow::DT_RESOURCE;
}

bool ReadsVariable(const std::string& op) {
  static const auto* ops = new OpNames{"ReadVariableOp",      "ResourceGather", "ResourceGatherNd",
                                       "_GatherVariableRows", "VariableV2",     "Variable"};
  return IsOneOf(*ops, op);
}

// Ops whose result does not depend on the values of the tensor.
bool ReadsOnlyShape(const std::string& op) {
  static const auto* ops = new OpNames{"Shape", "ShapeN", "Size", "Rank", "ZerosLike", "OnesLike"};
  return IsOneOf(*ops, op);
}

// The body of a called function is not inspected.
bool CallsFunction(const std::string& op) {
  static const auto* ops = new OpNames{"PartitionedCall",
                                       "StatefulPartitionedCall",
                                       "While",
                                       "StatelessWhile",
                                       "If",
                                       "StatelessIf",
                                       "Case",
                                       "StatelessCase",
                                       "SymbolicGradient",
                                       "RemoteCall"};
  return IsOneOf(*ops, op);
}

// The second output of a cross entropy is a gradient. A BackpropInput is not listed: the forward
// pass of a transposed convolution is one.
bool IsGradientByType(absl::string_view op) {
  return absl::StrContains(op, "BackpropFilter") || absl::EndsWith(op, "CrossEntropyWithLogits") ||
         (absl::StrContains(op, "Grad") && !absl::EndsWith(op, "Gradient"));
}

// Return the name of the op that this one computes a gradient of, by the scopes of TensorFlow's
// gradient tape ("gradient_tape/net/MatMul/MatMul_1") and of tf.gradients
// ("gradients/net/MatMul_grad/MatMul_1"): "net/MatMul"; "" if it is in no such scope.
std::string DifferentiatedName(absl::string_view name) {
  for (const absl::string_view scope : {"gradient_tape/", "gradients/"}) {
    const size_t at = name.find(scope);
    if (at == name.npos || (at > 0 && name[at - 1] != '/')) continue;
    absl::string_view op = name.substr(at + scope.size());
    op = op.substr(0, std::min(op.rfind('/'), op.size()));
    absl::ConsumeSuffix(&op, "_grad");
    return absl::StrCat(name.substr(0, at), op);
  }
  return "";
}

// Constants and ops on shapes may be shared with the forward part: TensorFlow merges equal ones
// under either name.
bool IsGradientByScope(const GraphIndex& index, int n) {
  const std::string& name = index.node(n).name();
  const std::string& op = index.node(n).op();
  return (absl::StrContains(name, "gradient_tape") || absl::StartsWith(name, "gradients/") ||
          absl::StrContains(name, "/gradients/")) &&
         op != "Const" && op != "HostConst" && !ReadsOnlyShape(op) &&
         tensorflow::DataTypeIsFloating(index.OutputType({n, 0}));
}

// Return, by node, whether a matrix product or convolution that is differentiated depends on it.
// TensorFlow also merges equal ops of both parts: the square of gelu's gradient is then used by
// the forward part under the gradient's name.
std::vector<bool> BeforeForwardMilestone(const GraphIndex& index) {
  OpNames differentiated;
  for (int n = 0; n < index.size(); ++n) {
    std::string name = DifferentiatedName(index.node(n).name());
    if (!name.empty()) differentiated.insert(std::move(name));
  }
  std::vector<bool> before(index.size(), false);
  for (auto n = index.order().rbegin(); n != index.order().rend(); ++n) {
    const auto& consumers = index.consumers(*n);
    before[*n] = std::any_of(consumers.begin(), consumers.end(), [&](const auto& consumer) {
      const std::string& name = index.node(consumer.node).name();
      return before[consumer.node] ||
             (index.IsMilestone(consumer.node) && DifferentiatedName(name).empty() &&
              IsOneOf(differentiated, name));
    });
  }
  return before;
}

bool ReadsFloat(const GraphIndex& index, int n) {
  return std::any_of(index.inputs(n).begin(), index.inputs(n).end(), [&](const TensorId& input) {
    return index.OutputType(input) == tensorflow::DT_FLOAT;
  });
}

}  // namespace

ForwardBackward FindForwardBackward(const GraphIndex& index) {
  const int count = index.size();
  bool has_iterator = false;
  for (int n = 0; n < count; ++n) has_iterator |= IsIterator(index.node(n).op());
  const std::vector<bool> before_forward = BeforeForwardMilestone(index);
  std::vector<bool> of_batch(count, false), of_variables(count, false);
  ForwardBackward parts{std::vector<bool>(count, false), std::vector<bool>(count, false)};
  bool has_gradients = false;
  int first_gradient = count;  // by position
  for (int n : index.order()) {
    const std::string& op = index.node(n).op();
    bool backward = IsGradientByScope(index, n) && !before_forward[n];
    bool batch = has_iterator ? IsIterator(op) : IsArgument(index, n);
    bool variables = ReadsVariable(op);
    if (!ReadsOnlyShape(op)) {
      backward |= CallsFunction(op);
      for (const TensorId& input : index.inputs(n)) {
        batch |= of_batch[input.node];
        variables |= of_variables[input.node];
        backward |= parts.backward[input.node];
      }
    }
    // Without a float input, these op types compute shapes from shapes.
    if (batch && IsGradientByType(op) && ReadsFloat(index, n)) {
      backward = true;
      first_gradient = std::min(first_gradient, index.position(n));
    }
    has_gradients |= backward;
    of_batch[n] = batch;
    of_variables[n] = variables;
    parts.backward[n] = backward;
  }
  for (int n = 0; n < count; ++n) {
    // Not all gradients have a scope; none comes before the first one of a known type.
    parts.forward[n] = has_gradients && of_batch[n] && of_variables[n] && !parts.backward[n] &&
                       index.position(n) < first_gradient && !ReadsVariable(index.node(n).op()) &&
                       ReadsFloat(index, n);
  }
  return parts;
}

}  // namespace tfswap
