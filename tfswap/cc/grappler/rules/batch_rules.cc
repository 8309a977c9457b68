#include "grappler/rules/batch_rules.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "grappler/index/op_attributes.h"
#include "grappler/rules/elementwise_ops.h"
#include "grappler/rules/rule_table.h"
#include "tensorflow/core/framework/attr_value.pb.h"
#include "tensorflow/core/framework/types.pb.h"

namespace tfswap {

namespace {

using OptionalRule = std::optional<SplitRule>;
using Rule = std::function<OptionalRule(const OpView&)>;

bool Divisible(const Dims& dims, int64_t count) {
  return dims && !dims->empty() && dims->front() > 0 && dims->front() % count == 0;
}

// All outputs and the inputs at `parts` are split; the inputs at `shapes` are constant shapes.
OptionalRule Parts(const OpView& op, const std::vector<int>& parts,
                   const std::vector<int>& shapes = {}) {
  SplitRule found;
  found.inputs.resize(op.inputs.size());
  found.outputs.resize(op.outputs.size());
  for (int input : parts) {
    if (input >= static_cast<int>(op.inputs.size())) return std::nullopt;
    if (!Divisible(op.inputs[input], op.count)) return std::nullopt;
    const Cut cut = EvenCut(0, op.inputs[input]->front(), op.count);
    found.inputs[input].kind = InputKind::kPart;
    for (int64_t s = 0; s < op.count; ++s) found.inputs[input].pieces.push_back(cut.part(s));
  }
  for (int input : shapes) {
    auto shape = op.constant(input);
    if (!shape || shape->empty()) return std::nullopt;
    if (shape->front() != -1) {
      if (shape->front() % op.count != 0) return std::nullopt;
      shape->front() /= op.count;
    }
    found.inputs[input].kind = InputKind::kInts;
    found.inputs[input].ints.assign(op.count, *shape);
  }
  for (size_t output = 0; output < op.outputs.size(); ++output) {
    if (!Divisible(op.outputs[output], op.count)) continue;
    found.outputs[output].cut = EvenCut(0, op.outputs[output]->front(), op.count);
  }
  return found;
}

// The same, but the only output is a sum or mean over axis 0.
OptionalRule PartsReduced(const OpView& op, const std::vector<int>& parts, OutputKind kind) {
  OptionalRule found = Parts(op, parts);
  if (!found) return std::nullopt;
  const Cut even = EvenCut(0, op.count, op.count);
  found->outputs.assign(op.outputs.size(), OutputPart{yield, even});
  return found;
}

std::vector<int> UpTo(size_t count) {
  std::vector<int> all(count);
  for (size_t i = 0; i < count; ++i) all[i] = static_cast<int>(i);
  return all;
}

// Inputs with the axis 0 of the output are split; the others are broadcast along it.
OptionalRule Elementwise(const OpView& op) {
  if (op.outputs.empty() || !Divisible(op.outputs[0], op.count)) return std::nullopt;
  const std::vector<int64_t>& out = *op.outputs[0];
  std::vector<int> parts;
  for (size_t i = 0; i < op.inputs.size(); ++i) {
    const Dims& in = op.inputs[i];
    if (!in) return std::nullopt;
    if (in->size() < out.size()) continue;
    if (in->front() == out.front()) {
      parts.push_back(static_cast<int>(i));
    } else if (in->front() != 1) {
      return std::nullopt;
    }
  }
  return Parts(op, parts);
}

OptionalRule Bitcast(const OpView& op) {
  const bool alike = !op.outputs.empty() && op.outputs[0] && op.inputs[0] == op.outputs[0];
  return alike ? Elementwise(op) : std::nullopt;
}

// Selects rows by a vector, or elements.
OptionalRule Select(const OpView& op) {
  return op.inputs.size() == 3 && op.inputs[0] && !op.inputs[0]->empty() ? Parts(op, {0, 1, 2})
                                                                         : std::nullopt;
}

// Only the first input is split.
OptionalRule First(const OpView& op) { return Parts(op, {0}); }
OptionalRule FirstTwo(const OpView& op) { return Parts(op, {0, 1}); }
OptionalRule FirstThree(const OpView& op) { return Parts(op, {0, 1, 2}); }

// A fused op may add a tensor of the output's shape.
OptionalRule Fused(const OpView& op) {
  if (op.inputs.empty() || op.outputs.empty() || !Divisible(op.outputs[0], op.count)) {
    return std::nullopt;
  }
  std::vector<int> parts = {0};
  for (size_t i = 2; i < op.inputs.size(); ++i) {
    const Dims& in = op.inputs[i];
    if (!in) return std::nullopt;
    if (in->size() > 1 && in->size() == op.outputs[0]->size()) {
      if (in->front() == 1) continue;
      if (in->front() != op.outputs[0]->front()) return std::nullopt;
      parts.push_back(static_cast<int>(i));
    }
  }
  return Parts(op, parts);
}

OptionalRule InputGradient(const OpView& op) { return Parts(op, {2}, {0}); }
OptionalRule FilterGradient(const OpView& op) { return PartsReduced(op, {0, 2}, OutputKind::kSum); }
OptionalRule SumOverBatch(const OpView& op) { return PartsReduced(op, {0}, OutputKind::kSum); }

OptionalRule Pooling(const OpView& op) {
  const auto it = op.node->attr().find("ksize");
  const bool apart =
      it != op.node->attr().end() && it->second.list().i_size() > 0 && it->second.list().i(0) == 1;
  if (!apart) return std::nullopt;
  if (op.node->op() == "AvgPoolGrad") return Parts(op, {1}, {0});
  return op.node->op() == "MaxPoolGrad" ? FirstThree(op) : First(op);
}

OptionalRule Product(const OpView& op) {
  if (op.inputs.size() < 2) return std::nullopt;
  const bool a_across = Flag(op, "transpose_a"), b_across = Flag(op, "transpose_b");
  if (op.IsBatched(0) && !a_across && !op.IsBatched(1)) return Fused(op);
  if (op.node->op() == "MatMul" && op.IsBatched(0) && op.IsBatched(1) && a_across && !b_across) {
    return PartsReduced(op, {0, 1}, OutputKind::kSum);
  }
  return std::nullopt;
}

OptionalRule BatchProduct(const OpView& op) {
  if (op.outputs.empty() || !op.outputs[0] || op.outputs[0]->size() < 3) return std::nullopt;
  return Elementwise(op);
}

// One letter per dimension. The first letter of the inputs that depend on the batch is split
// everywhere.
OptionalRule Einsum(const OpView& op) {
  const std::string& equation = Text(op, "equation");
  const std::vector<std::string> sides = absl::StrSplit(equation, "->");
  if (sides.size() != 2 || absl::StrContains(equation, "...")) return std::nullopt;
  const std::vector<std::string> inputs = absl::StrSplit(sides[0], ',');
  if (inputs.size() != op.inputs.size()) return std::nullopt;
  char batch = 0;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!op.IsBatched(i)) continue;
    if (inputs[i].empty() || (batch != 0 && inputs[i][0] != batch)) return std::nullopt;
    batch = inputs[i][0];
  }
  if (batch == 0) return std::nullopt;
  std::vector<int> parts;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const size_t at = inputs[i].find(batch);
    if (at == std::string::npos) continue;
    if (at != 0 || inputs[i].find(batch, 1) != std::string::npos) return std::nullopt;
    parts.push_back(static_cast<int>(i));
  }
  const size_t at = sides[1].find(batch);
  if (at == 0) return Parts(op, parts);
  return at == std::string::npos ? PartsReduced(op, parts, OutputKind::kSum) : std::nullopt;
}

OptionalRule Reshape(const OpView& op) { return Parts(op, {0}, {1}); }

// Axis 0 stays axis 0 if the axis is inserted or removed after it.
OptionalRule ExpandDims(const OpView& op) {
  const auto axis = op.constant(1);
  if (!axis || axis->size() != 1 || !op.inputs[0]) return std::nullopt;
  const int64_t rank = op.inputs[0]->size();
  const int64_t at = axis->front() < 0 ? axis->front() + rank + 1 : axis->front();
  return at > 0 ? First(op) : std::nullopt;
}

OptionalRule Squeeze(const OpView& op) {
  if (op.outputs.empty() || !op.outputs[0] || !op.inputs[0]) return std::nullopt;
  const bool kept = !op.outputs[0]->empty() && !op.inputs[0]->empty() &&
                    op.outputs[0]->front() == op.inputs[0]->front();
  const auto named = op.node->attr().find("squeeze_dims");
  const bool by_name = named != op.node->attr().end() && named->second.list().i_size() > 0;
  return kept && (by_name || op.inputs[0]->front() > op.count) ? First(op) : std::nullopt;
}

OptionalRule Transpose(const OpView& op) {
  const auto order = op.constant(1);
  return order && !order->empty() && order->front() == 0 ? First(op) : std::nullopt;
}

OptionalRule Concat(const OpView& op) {
  const auto last = static_cast<int>(op.inputs.size()) - 1;
  const auto axis = ConstantAxis(op, last, op.inputs[0]);
  return axis && *axis > 0 ? Parts(op, UpTo(last)) : std::nullopt;
}

OptionalRule Split(const OpView& op) {
  const int value = op.node->op() == "Split" ? 1 : 0;
  const int where = op.node->op() == "Split" ? 0 : 2;
  const auto axis = ConstantAxis(op, where, op.inputs[value]);
  return axis && *axis > 0 ? Parts(op, {value}) : std::nullopt;
}

OptionalRule Pack(const OpView& op) {
  return Integer(op, "axis") > 0 ? Parts(op, UpTo(op.inputs.size())) : std::nullopt;
}

OptionalRule Unpack(const OpView& op) { return Integer(op, "axis") > 0 ? First(op) : std::nullopt; }

OptionalRule Pad(const OpView& op) {
  const auto paddings = op.constant(1);
  const bool apart =
      paddings && paddings->size() >= 2 && (*paddings)[0] == 0 && (*paddings)[1] == 0;
  return apart ? First(op) : std::nullopt;
}

OptionalRule Tile(const OpView& op) {
  const auto multiples = op.constant(1);
  if (op.inputs[0] && !op.inputs[0]->empty() && op.inputs[0]->front() == 1) {
    return Parts(op, {}, {1});
  }
  return multiples && !multiples->empty() && multiples->front() == 1 ? First(op) : std::nullopt;
}

// The slice must contain all of axis 0.
OptionalRule StridedSlice(const OpView& op) {
  constexpr int64_t kAxis0 = 1;
  const bool all = (Integer(op, "begin_mask") & kAxis0) != 0 &&
                   (Integer(op, "end_mask") & kAxis0) != 0 &&
                   (Integer(op, "ellipsis_mask") & kAxis0) == 0 &&
                   (Integer(op, "new_axis_mask") & kAxis0) == 0 &&
                   (Integer(op, "shrink_axis_mask") & kAxis0) == 0;
  const bool of_gradient = op.node->op() == "StridedSliceGrad";
  const auto strides = op.constant(3);
  if (!all || !strides || strides->empty() || strides->front() != 1) return std::nullopt;
  return of_gradient ? Parts(op, {4}, {0}) : First(op);
}

OptionalRule Slice(const OpView& op) {
  const auto begin = op.constant(1), size = op.constant(2);
  if (!begin || !size || begin->empty() || size->empty() || begin->front() != 0) {
    return std::nullopt;
  }
  const bool all = op.inputs[0] && !op.inputs[0]->empty() &&
                   (size->front() == -1 || size->front() == op.inputs[0]->front());
  return all ? Parts(op, {0}, {2}) : std::nullopt;
}

OptionalRule BroadcastTo(const OpView& op) {
  if (op.outputs.empty() || !Divisible(op.outputs[0], op.count) || !op.inputs[0]) {
    return std::nullopt;
  }
  const bool along = op.inputs[0]->size() < op.outputs[0]->size() || op.inputs[0]->front() == 1;
  if (along) return Parts(op, {}, {1});
  return Parts(op, {0}, {1});
}

OptionalRule Fill(const OpView& op) { return Parts(op, {}, {0}); }

// The op works along the last axis.
OptionalRule LastAxis(const OpView& op) {
  return op.inputs[0] && op.inputs[0]->size() > 1 ? First(op) : std::nullopt;
}

OptionalRule CrossEntropy(const OpView& op) {
  const bool alike = op.inputs.size() == 2 && op.inputs[0] && op.inputs[1] &&
                     !op.inputs[0]->empty() && !op.inputs[1]->empty() &&
                     op.inputs[0]->front() == op.inputs[1]->front();
  return alike ? FirstTwo(op) : std::nullopt;
}

// Over constant axes. Unless axis 0 is one, each section is reduced independently.
OptionalRule Reduction(const OpView& op) {
  const auto axes = op.constant(1);
  if (!axes || !op.inputs[0]) return std::nullopt;
  const int64_t rank = op.inputs[0]->size();
  const bool over_batch = std::any_of(axes->begin(), axes->end(),
                                      [&](int64_t axis) { return axis == 0 || axis == -rank; });
  if (!over_batch) return axes->empty() ? std::nullopt : First(op);
  if (op.node->op() == "Sum") return PartsReduced(op, {0}, OutputKind::kSum);
  const bool is_float =
      op.node->attr().count("T") > 0 && op.node->attr().at("T").type() == tensorflow::DT_FLOAT;
  return op.node->op() == "Mean" && is_float ? PartsReduced(op, {0}, OutputKind::kMean)
                                             : std::nullopt;
}

OptionalRule ArgReduction(const OpView& op) {
  const auto axis = ConstantAxis(op, 1, op.inputs[0]);
  return axis && *axis > 0 ? First(op) : std::nullopt;
}

OptionalRule OneHot(const OpView& op) {
  return Integer(op, "axis") != 0 ? First(op) : std::nullopt;
}

OptionalRule Gather(const OpView& op) {
  const auto axis = op.constant(2);
  if (!axis || axis->size() != 1) return std::nullopt;
  if (Integer(op, "batch_dims") > 0) return axis->front() > 0 ? FirstTwo(op) : std::nullopt;
  return axis->front() == 0 && !op.IsBatched(0) ? Parts(op, {1}) : std::nullopt;
}

OptionalRule SegmentSum(const OpView& op) { return PartsReduced(op, {0, 1}, OutputKind::kSum); }

OptionalRule ResizeGradient(const OpView& op) {
  return op.node->op() == "ResizeBilinearGrad" ? FirstTwo(op) : First(op);
}

const RuleTable<Rule>& Rules() {
  static const auto* rules = [] {
    auto* made = new RuleTable<Rule>();
    made->Set(Elementwise, ElementwiseOps());
    made->Set(Bitcast, {"Bitcast"});
    made->Set(Select, {"Select"});
    made->Set(First,
              {"BiasAdd", "LRN", "ResizeBicubic", "ResizeBilinear", "ResizeNearestNeighbor"});
    made->Set(Fused, {"Conv2D", "Conv3D", "DepthwiseConv2dNative", "_FusedConv2D",
                      "_FusedDepthwiseConv2dNative"});
    made->Set(InputGradient, {"Conv2DBackpropInput", "Conv3DBackpropInputV2",
                              "DepthwiseConv2dNativeBackpropInput"});
    made->Set(FilterGradient, {"Conv2DBackpropFilter", "Conv3DBackpropFilterV2",
                               "DepthwiseConv2dNativeBackpropFilter"});
    made->Set(SumOverBatch, {"BiasAddGrad"});
    made->Set(Pooling, {"AvgPool", "AvgPoolGrad", "MaxPool", "MaxPoolGrad"});
    made->Set(Product, {"MatMul", "_FusedMatMul"});
    made->Set(BatchProduct, {"BatchMatMul", "BatchMatMulV2", "BatchMatMulV3"});
    made->Set(Einsum, {"Einsum"});
    made->Set(Reshape, {"Reshape"});
    made->Set(ExpandDims, {"ExpandDims"});
    made->Set(Squeeze, {"Squeeze"});
    made->Set(Transpose, {"Transpose"});
    made->Set(Concat, {"ConcatV2"});
    made->Set(Split, {"Split", "SplitV"});
    made->Set(Pack, {"Pack"});
    made->Set(Unpack, {"Unpack"});
    made->Set(Pad, {"MirrorPad", "Pad", "PadV2"});
    made->Set(Fill, {"Fill"});
    made->Set(Tile, {"Tile"});
    made->Set(StridedSlice, {"StridedSlice", "StridedSliceGrad"});
    made->Set(Slice, {"Slice"});
    made->Set(BroadcastTo, {"BroadcastTo"});
    made->Set(LastAxis, {"LogSoftmax", "Softmax"});
    made->Set(CrossEntropy,
              {"SoftmaxCrossEntropyWithLogits", "SparseSoftmaxCrossEntropyWithLogits"});
    made->Set(Reduction, {"All", "Any", "Max", "Mean", "Min", "Prod", "Sum"});
    made->Set(ArgReduction, {"ArgMax", "ArgMin"});
    made->Set(OneHot, {"OneHot"});
    made->Set(Gather, {"GatherV2"});
    made->Set(SegmentSum, {"UnsortedSegmentSum"});
    made->Set(ResizeGradient, {"ResizeBilinearGrad", "ResizeNearestNeighborGrad"});
    return made;
  }();
  return *rules;
}

}  // namespace

std::optional<SplitRule> SplitByBatch(const OpView& op) {
  const Rule* rule = Rules().Find(op.node->op());
  if (rule == nullptr) return std::nullopt;
  OptionalRule found = (*rule)(op);
  if (!found) return std::nullopt;
  for (size_t i = 0; i < op.outputs.size(); ++i) {
    if (found->outputs[i].kind == OutputKind::kPart && !Divisible(op.outputs[i], op.count)) {
      return std::nullopt;
    }
  }
  return found;
}

}  // namespace tfswap
