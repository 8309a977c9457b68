#include "grappler/rules/row_rules.h"

#include <algorithm>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "grappler/index/op_attributes.h"
#include "grappler/rules/elementwise_ops.h"
#include "grappler/rules/rule_table.h"
#include "grappler/rules/window_rules.h"
#include "grappler/sections/row_parts.h"
#include "tensorflow/core/framework/attr_value.pb.h"
#include "tensorflow/core/framework/types.pb.h"

namespace tfswap {

namespace {

using OptionalRule = std::optional<SplitRule>;
// A rule gets the cuts of the op's inputs and, if there are none, the cut of its output.
using Rule = std::function<OptionalRule(const OpView&, const std::optional<Cut>& output_cut)>;

// Return the first input that is split.
std::optional<int> FirstCutInput(const OpView& op) {
  for (size_t i = 0; i < op.cuts.size(); ++i) {
    if (op.cuts[i]) return static_cast<int>(i);
  }
  return std::nullopt;
}

// The first input and all outputs have the same parts.
OptionalRule SameParts(const OpView& op, const Cut& cut) {
  SplitRule found = MakeRule(op, cut);
  found.inputs[0] = PartsOf(cut);
  return found;
}

// The constant `ints` per section, with the extent of the part in place of `ints[at]`.
InputPart IntsPerSection(const std::vector<int64_t>& ints, size_t at, const Cut& cut) {
  InputPart input{InputKind::kInts, 0, {}, {}, {}};
  for (int64_t s = 0; s < cut.count(); ++s) {
    input.ints.push_back(ints);
    const Piece part = cut.part(s);
    if (ints[at] != -1) input.ints.back()[at] = part.end - part.begin;
  }
  return input;
}

// Inputs are broadcast to the output; inputs with the split axis are split.
OptionalRule Elementwise(const OpView& op, const std::optional<Cut>& output_cut) {
  if (op.outputs.empty() || !IsKnown(op.outputs[0])) return std::nullopt;
  const std::vector<int64_t>& out = *op.outputs[0];
  std::optional<Cut> cut = output_cut;
  if (const auto first = FirstCutInput(op)) {
    cut = op.cuts[*first];
    if (!IsKnown(op.inputs[*first])) return std::nullopt;
    cut->axis += static_cast<int>(out.size() - op.inputs[*first]->size());
  }
  if (!cut || cut->axis < 0 || cut->axis >= static_cast<int>(out.size())) return std::nullopt;
  if (cut->bounds.back() != out[cut->axis]) return std::nullopt;
  SplitRule found = MakeRule(op, *cut);
  for (size_t i = 0; i < op.inputs.size(); ++i) {
    if (!IsKnown(op.inputs[i])) return std::nullopt;
    const std::vector<int64_t>& in = *op.inputs[i];
    const int axis = cut->axis - static_cast<int>(out.size() - in.size());
    if (axis < 0 || in[axis] == 1) continue;
    if (in[axis] != out[cut->axis]) return std::nullopt;
    found.inputs[i] = PartsOf({axis, cut->bounds});
  }
  return found;
}

// Supported only if the shapes are equal.
OptionalRule Select(const OpView& op, const std::optional<Cut>& output_cut) {
  const bool alike = op.inputs.size() == 3 && op.inputs[0] == op.inputs[1];
  return alike ? Elementwise(op, output_cut) : std::nullopt;
}

OptionalRule Bitcast(const OpView& op, const std::optional<Cut>& output_cut) {
  const bool alike = !op.outputs.empty() && op.inputs[0] == op.outputs[0];
  return alike ? Elementwise(op, output_cut) : std::nullopt;
}

// The op works along the last axis.
OptionalRule LastAxis(const OpView& op, const std::optional<Cut>&) {
  const auto& cut = op.cuts[0];
  if (!cut || !IsChannelsLast(op) || cut->axis + 1 >= static_cast<int>(op.inputs[0]->size())) {
    return std::nullopt;
  }
  return SameParts(op, *cut);
}

OptionalRule BiasGradient(const OpView& op, const std::optional<Cut>& output_cut) {
  OptionalRule found = LastAxis(op, output_cut);
  if (found) found->outputs[0].kind = OutputKind::kSum;
  return found;
}

// The first and the last part get the padding.
OptionalRule Pad(const OpView& op, const std::optional<Cut>&) {
  const auto paddings = op.constant(1);
  if (!op.cuts[0] || !paddings || !IsKnown(op.outputs[0])) return std::nullopt;
  const int axis = op.cuts[0]->axis;
  const int64_t before = paddings->at(2 * axis), extent = (*op.inputs[0])[axis];
  SplitRule found = MakeRule(op, EvenCut(axis, (*op.outputs[0])[axis], op.count));
  found.inputs[0] = {InputKind::kPart, axis, {}, {}, {}};
  found.inputs[1].kind = InputKind::kInts;
  for (int64_t s = 0; s < op.count; ++s) {
    const Piece part = found.outputs[0].cut.part(s);
    const Piece inside = {std::max<int64_t>(part.begin - before, 0),
                          std::min(part.end - before, extent)};
    if (inside.begin >= inside.end) return std::nullopt;
    found.inputs[0].pieces.push_back(inside);
    std::vector<int64_t> own = *paddings;
    own[2 * axis] = inside.begin - (part.begin - before);
    own[2 * axis + 1] = part.end - before - inside.end;
    found.inputs[1].ints.push_back(std::move(own));
  }
  return found;
}

OptionalRule Slice(const OpView& op, const std::optional<Cut>&) {
  const auto begin = op.constant(1), size = op.constant(2);
  if (!op.cuts[0] || !begin || !size || !IsKnown(op.outputs[0])) return std::nullopt;
  Cut cut = *op.cuts[0];
  const int64_t skipped = begin->at(cut.axis);
  const int64_t extent = (*op.outputs[0])[cut.axis];
  if (extent != (*op.inputs[0])[cut.axis]) {
    if (extent < op.count) return std::nullopt;
    cut = EvenCut(cut.axis, extent, op.count);
  }
  SplitRule found = MakeRule(op, cut);
  found.inputs[0] = PartsOf(cut);
  for (Piece& piece : found.inputs[0].pieces) {
    piece.begin += skipped;
    piece.end += skipped;
  }
  std::vector<int64_t> from_start = *begin;
  from_start[cut.axis] = 0;
  found.inputs[1] = {InputKind::kInts, 0, {}, {}, {}};
  found.inputs[1].ints.assign(op.count, from_start);
  std::vector<int64_t> all = *size;
  all[cut.axis] = extent;
  found.inputs[2] = IntsPerSection(all, cut.axis, cut);
  return found;
}

// Return whether a slice of a tensor of rank `rank` contains all of `axis` and keeps the axes
// before it.
bool TakesAll(const OpView& op, int axis, int rank) {
  const auto strides = op.constant(3);
  const int64_t ellipsis = Integer(op, "ellipsis_mask");
  if (!strides || Integer(op, "new_axis_mask") != 0) return false;
  const int given = static_cast<int>(strides->size());
  int skipped = given;  // the ellipsis' place
  for (int i = given - 1; i >= 0; --i) {
    if ((ellipsis >> i & 1) != 0) skipped = i;
  }
  const auto bits_before = [](int i) { return (int64_t{1} << i) - 1; };
  const int64_t shrunk = Integer(op, "shrink_axis_mask");
  if (axis >= skipped) {
    const bool is_skipped = skipped == given || axis < rank - (given - skipped - 1);
    return is_skipped && (shrunk & bits_before(skipped)) == 0;
  }
  const bool all = (Integer(op, "begin_mask") >> axis & 1) != 0 &&
                   (Integer(op, "end_mask") >> axis & 1) != 0 && strides->at(axis) == 1;
  return all && (shrunk & bits_before(axis + 1)) == 0;
}

OptionalRule StridedSlice(const OpView& op, const std::optional<Cut>&) {
  if (!op.cuts[0] || !op.inputs[0]) return std::nullopt;
  const int rank = static_cast<int>(op.inputs[0]->size());
  return TakesAll(op, op.cuts[0]->axis, rank) ? SameParts(op, *op.cuts[0]) : std::nullopt;
}

OptionalRule StridedSliceGradient(const OpView& op, const std::optional<Cut>&) {
  const auto shape = op.constant(0);
  if (!shape || op.inputs.size() != 5 || !op.cuts[4]) return std::nullopt;
  const Cut& cut = *op.cuts[4];
  if (!TakesAll(op, cut.axis, static_cast<int>(shape->size()))) return std::nullopt;
  SplitRule found = MakeRule(op, cut);
  found.inputs[0] = IntsPerSection(*shape, cut.axis, cut);
  found.inputs[4] = PartsOf(cut);
  return found;
}

OptionalRule Concat(const OpView& op, const std::optional<Cut>&) {
  const auto first = FirstCutInput(op);
  const auto last = op.inputs.size() - 1;
  if (!first) return std::nullopt;
  const auto axis = ConstantAxis(op, static_cast<int>(last), op.inputs[0]);
  const Cut& cut = *op.cuts[*first];
  if (!axis || *axis == cut.axis) return std::nullopt;
  SplitRule found = MakeRule(op, cut);
  for (size_t i = 0; i < last; ++i) {
    if (!IsKnown(op.inputs[i]) || (*op.inputs[i])[cut.axis] != cut.bounds.back()) {
      return std::nullopt;
    }
    found.inputs[i] = PartsOf(cut);
  }
  return found;
}

OptionalRule Split(const OpView& op, const std::optional<Cut>&) {
  const bool even = op.node->op() == "Split";
  const int value = even ? 1 : 0;
  const auto axis = ConstantAxis(op, even ? 0 : 2, op.inputs[value]);
  if (!op.cuts[value] || !axis || *axis == op.cuts[value]->axis) return std::nullopt;
  SplitRule found = MakeRule(op, *op.cuts[value]);
  found.inputs[value] = PartsOf(*op.cuts[value]);
  return found;
}

// Over constant axes.
OptionalRule Reduction(const OpView& op, const std::optional<Cut>&) {
  const auto axes = op.constant(1);
  if (!op.cuts[0] || !axes || !op.inputs[0]) return std::nullopt;
  const int64_t rank = op.inputs[0]->size();
  Cut cut = *op.cuts[0];
  bool over = false;
  int before = 0;
  for (int64_t axis : *axes) {
    if (axis < 0) axis += rank;
    over = over || axis == cut.axis;
    before += axis < cut.axis ? 1 : 0;
  }
  OptionalRule found = SameParts(op, cut);
  if (!over) {
    if (!Flag(op, "keep_dims")) found->outputs[0].cut.axis -= before;
    return found;
  }
  const bool is_float =
      op.node->attr().count("T") > 0 && op.node->attr().at("T").type() == tensorflow::DT_FLOAT;
  if (op.node->op() == "Sum") {
    found->outputs[0].kind = OutputKind::kSum;
  } else if (op.node->op() == "Mean" && is_float) {
    found->outputs[0].kind = OutputKind::kMean;
  } else {
    return std::nullopt;
  }
  return found;
}

OptionalRule ArgReduction(const OpView& op, const std::optional<Cut>&) {
  const auto axis = ConstantAxis(op, 1, op.inputs[0]);
  if (!op.cuts[0] || !axis || *axis == op.cuts[0]->axis) return std::nullopt;
  OptionalRule found = SameParts(op, *op.cuts[0]);
  if (*axis < op.cuts[0]->axis) --found->outputs[0].cut.axis;
  return found;
}

// Repeats along other axes, or along the split axis from a single row.
OptionalRule Tile(const OpView& op, const std::optional<Cut>& output_cut) {
  const auto multiples = op.constant(1);
  if (!multiples) return std::nullopt;
  if (op.cuts[0]) {
    const bool apart = multiples->at(op.cuts[0]->axis) == 1;
    return apart ? SameParts(op, *op.cuts[0]) : std::nullopt;
  }
  if (!output_cut || !IsKnown(op.inputs[0]) || (*op.inputs[0])[output_cut->axis] != 1)
    return std::nullopt;
  SplitRule found = MakeRule(op, *output_cut);
  found.inputs[1] = IntsPerSection(*multiples, output_cut->axis, *output_cut);
  return found;
}

OptionalRule BroadcastTo(const OpView& op, const std::optional<Cut>& output_cut) {
  const auto shape = op.constant(1);
  if (!shape || op.cuts[0] || !output_cut || !IsKnown(op.inputs[0])) return std::nullopt;
  const auto in = op.inputs[0]->size(), out = shape->size();
  const int axis = output_cut->axis - static_cast<int>(out - in);
  if (axis >= 0 && (*op.inputs[0])[axis] != 1) return std::nullopt;
  SplitRule found = MakeRule(op, *output_cut);
  found.inputs[1] = IntsPerSection(*shape, output_cut->axis, *output_cut);
  return found;
}

OptionalRule Fill(const OpView& op, const std::optional<Cut>& output_cut) {
  const auto shape = op.constant(0);
  if (!shape || !output_cut) return std::nullopt;
  SplitRule found = MakeRule(op, *output_cut);
  found.inputs[0] = IntsPerSection(*shape, output_cut->axis, *output_cut);
  return found;
}

// The same elements in another shape: the bounds stay at the same elements.
std::optional<Cut> Reshaped(const Cut& cut, const Dims& in, const Dims& out) {
  if (!IsKnown(in) || !IsKnown(out) || Product(*in, 0, cut.axis) != 1) return std::nullopt;
  const int64_t inner = Product(*in, cut.axis + 1, in->size());
  size_t axis = 0;
  while (axis < out->size() && (*out)[axis] == 1) ++axis;
  if (axis == out->size()) return std::nullopt;
  const int64_t each = Product(*out, axis + 1, out->size());
  Cut found{static_cast<int>(axis), {}};
  for (int64_t bound : cut.bounds) {
    if (bound * inner % each != 0) return std::nullopt;
    found.bounds.push_back(bound * inner / each);
  }
  for (int64_t s = 0; s < found.count(); ++s) {
    if (found.bounds[s] >= found.bounds[s + 1]) return std::nullopt;
  }
  return found;
}

OptionalRule Reshape(const OpView& op, const std::optional<Cut>&) {
  if (!op.cuts[0]) return std::nullopt;
  const auto cut = Reshaped(*op.cuts[0], op.inputs[0], op.outputs[0]);
  if (!cut) return std::nullopt;
  OptionalRule found = SameParts(op, *op.cuts[0]);
  found->outputs[0].cut = *cut;
  if (op.node->op() != "Reshape") return found;
  const auto shape = op.constant(1);
  if (!shape || shape->size() != op.outputs[0]->size()) return std::nullopt;
  found->inputs[1] = IntsPerSection(*shape, cut->axis, *cut);
  return found;
}

OptionalRule Squeeze(const OpView& op, const std::optional<Cut>& output_cut) {
  return Integers(op, "squeeze_dims").empty() ? std::nullopt : Reshape(op, output_cut);
}

OptionalRule Transpose(const OpView& op, const std::optional<Cut>&) {
  const auto order = op.constant(1);
  if (!op.cuts[0] || !order) return std::nullopt;
  OptionalRule found = SameParts(op, *op.cuts[0]);
  const auto at = std::find(order->begin(), order->end(), op.cuts[0]->axis);
  if (at == order->end()) return std::nullopt;
  found->outputs[0].cut.axis = static_cast<int>(at - order->begin());
  return found;
}

// Rows of a matrix are independent; labels are a vector or a matrix.
OptionalRule CrossEntropy(const OpView& op, const std::optional<Cut>&) {
  const auto first = FirstCutInput(op);
  if (!first || op.cuts[*first]->axis != 0 || op.inputs.size() != 2) return std::nullopt;
  SplitRule found = MakeRule(op, *op.cuts[*first]);
  for (int i = 0; i < 2; ++i) {
    if (!IsKnown(op.inputs[i]) || op.inputs[i]->front() != op.cuts[*first]->bounds.back()) {
      return std::nullopt;
    }
    found.inputs[i] = PartsOf(*op.cuts[*first]);
  }
  return found;
}

// A product of the rows of a matrix with another one, or its gradient.
OptionalRule MatrixProduct(const OpView& op, const std::optional<Cut>&) {
  if (op.inputs.size() != 2 || !op.cuts[0] || op.cuts[0]->axis != 0) return std::nullopt;
  if (Flag(op, "transpose_b") && op.IsBatched(1)) return std::nullopt;
  OptionalRule found = SameParts(op, *op.cuts[0]);
  if (!Flag(op, "transpose_a")) return op.IsBatched(1) ? std::nullopt : found;
  if (!op.IsBatched(1) || op.cuts[1]->axis != 0) return std::nullopt;
  found->inputs[1] = PartsOf(*op.cuts[0]);
  found->outputs[0].kind = OutputKind::kSum;
  return found;
}

OptionalRule OneHot(const OpView& op, const std::optional<Cut>&) {
  return op.cuts[0] && Integer(op, "axis") == -1 ? SameParts(op, *op.cuts[0]) : std::nullopt;
}

const RuleTable<Rule>& Rules() {
  static const auto* rules = [] {
    auto* made = new RuleTable<Rule>();
    made->Set(Elementwise, ElementwiseOps());
    made->Set(Bitcast, {"Bitcast"});
    made->Set(Select, {"Select"});
    made->Set(LastAxis, {"BiasAdd", "LRN", "LogSoftmax", "Softmax"});
    made->Set(BiasGradient, {"BiasAddGrad"});
    made->Set(Pad, {"Pad", "PadV2"});
    made->Set(Slice, {"Slice"});
    made->Set(StridedSlice, {"StridedSlice"});
    made->Set(StridedSliceGradient, {"StridedSliceGrad"});
    made->Set(Concat, {"ConcatV2"});
    made->Set(Split, {"Split", "SplitV"});
    made->Set(Reduction, {"All", "Any", "Max", "Mean", "Min", "Prod", "Sum"});
    made->Set(ArgReduction, {"ArgMax", "ArgMin"});
    made->Set(Tile, {"Tile"});
    made->Set(BroadcastTo, {"BroadcastTo"});
    made->Set(Fill, {"Fill"});
    made->Set(Reshape, {"ExpandDims", "Reshape"});
    made->Set(Squeeze, {"Squeeze"});
    made->Set(Transpose, {"Transpose"});
    made->Set(CrossEntropy,
              {"SoftmaxCrossEntropyWithLogits", "SparseSoftmaxCrossEntropyWithLogits"});
    made->Set(MatrixProduct, {"MatMul"});
    made->Set(OneHot, {"OneHot"});
    return made;
  }();
  return *rules;
}

// False if there are fewer rows than sections.
bool AllPartsNonEmpty(const SplitRule& how) {
  for (const InputPart& input : how.inputs) {
    for (const Piece& piece : input.pieces) {
      if (piece.begin >= piece.end) return false;
    }
  }
  for (const OutputPart& output : how.outputs) {
    for (int64_t s = 0; s < output.cut.count(); ++s) {
      if (output.cut.bounds[s] >= output.cut.bounds[s + 1]) return false;
    }
  }
  return true;
}

}  // namespace

std::optional<SplitRule> SplitByRows(const OpView& op, const std::optional<Cut>& output_cut) {
  OptionalRule found;
  if (HasWindow(op)) {
    found = SplitWindow(op);
  } else if (const Rule* rule = Rules().Find(op.node->op())) {
    found = (*rule)(op, output_cut);
  }
  return found && AllPartsNonEmpty(*found) ? found : std::nullopt;
}

}  // namespace tfswap
