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

using Found = std::optional<SplitRule>;
// What a rule begins with: how its input or, without one, its output is to be cut.
using Rule = std::function<Found(const OpView&, const std::optional<Cut>& wanted)>;

// The cut of the first input that has one.
std::optional<int> FirstBatched(const OpView& op) {
  for (size_t i = 0; i < op.cuts.size(); ++i) {
    if (op.cuts[i]) return static_cast<int>(i);
  }
  return std::nullopt;
}

// The first input by its parts; all outputs by the same.
Found Alike(const OpView& op, const Cut& cut) {
  SplitRule found = Begun(op, cut);
  found.inputs[0] = PartsOf(cut);
  return found;
}

// Constants of each section: an input's own, but for one number.
InputPart IntsWith(const std::vector<int64_t>& ints, size_t at, const Cut& cut) {
  InputPart input{Share::kInts, 0, {}, {}, {}};
  for (int64_t s = 0; s < cut.count(); ++s) {
    input.ints.push_back(ints);
    const Piece part = cut.part(s);
    if (ints[at] != -1) input.ints.back()[at] = part.end - part.begin;
  }
  return input;
}

// Inputs are broadcast to the output; those that have the cut axis, give parts of it.
Found Elementwise(const OpView& op, const std::optional<Cut>& wanted) {
  if (op.outputs.empty() || !IsKnown(op.outputs[0])) return std::nullopt;
  const std::vector<int64_t>& out = *op.outputs[0];
  std::optional<Cut> cut = wanted;
  if (const auto first = FirstBatched(op)) {
    cut = op.cuts[*first];
    if (!IsKnown(op.inputs[*first])) return std::nullopt;
    cut->axis += static_cast<int>(out.size() - op.inputs[*first]->size());
  }
  if (!cut || cut->axis < 0 || cut->axis >= static_cast<int>(out.size())) return std::nullopt;
  if (cut->bounds.back() != out[cut->axis]) return std::nullopt;
  SplitRule found = Begun(op, *cut);
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

// What is alike in shape only.
Found Select(const OpView& op, const std::optional<Cut>& wanted) {
  const bool alike = op.inputs.size() == 3 && op.inputs[0] == op.inputs[1];
  return alike ? Elementwise(op, wanted) : std::nullopt;
}

Found Bitcast(const OpView& op, const std::optional<Cut>& wanted) {
  const bool alike = !op.outputs.empty() && op.inputs[0] == op.outputs[0];
  return alike ? Elementwise(op, wanted) : std::nullopt;
}

// The last axis is what it works on, or along.
Found LastAxis(const OpView& op, const std::optional<Cut>&) {
  const auto& cut = op.cuts[0];
  if (!cut || !IsChannelsLast(op) || cut->axis + 1 >= static_cast<int>(op.inputs[0]->size())) {
    return std::nullopt;
  }
  return Alike(op, *cut);
}

Found BiasGradient(const OpView& op, const std::optional<Cut>& wanted) {
  Found found = LastAxis(op, wanted);
  if (found) found->outputs[0].yield = Yield::kSum;
  return found;
}

// Padded at its ends are the first and the last part.
Found Pad(const OpView& op, const std::optional<Cut>&) {
  const auto paddings = op.constant(1);
  if (!op.cuts[0] || !paddings || !IsKnown(op.outputs[0])) return std::nullopt;
  const int axis = op.cuts[0]->axis;
  const int64_t before = paddings->at(2 * axis), extent = (*op.inputs[0])[axis];
  SplitRule found = Begun(op, EvenCut(axis, (*op.outputs[0])[axis], op.count));
  found.inputs[0] = {Share::kPart, axis, {}, {}, {}};
  found.inputs[1].share = Share::kInts;
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

Found Slice(const OpView& op, const std::optional<Cut>&) {
  const auto begin = op.constant(1), size = op.constant(2);
  if (!op.cuts[0] || !begin || !size || !IsKnown(op.outputs[0])) return std::nullopt;
  Cut cut = *op.cuts[0];
  const int64_t skipped = begin->at(cut.axis);
  const int64_t extent = (*op.outputs[0])[cut.axis];
  if (extent != (*op.inputs[0])[cut.axis]) {
    if (extent < op.count) return std::nullopt;
    cut = EvenCut(cut.axis, extent, op.count);
  }
  SplitRule found = Begun(op, cut);
  found.inputs[0] = PartsOf(cut);
  for (Piece& piece : found.inputs[0].pieces) {
    piece.begin += skipped;
    piece.end += skipped;
  }
  std::vector<int64_t> from_start = *begin;
  from_start[cut.axis] = 0;
  found.inputs[1] = {Share::kInts, 0, {}, {}, {}};
  found.inputs[1].ints.assign(op.count, from_start);
  std::vector<int64_t> all = *size;
  all[cut.axis] = extent;
  found.inputs[2] = IntsWith(all, cut.axis, cut);
  return found;
}

// Whether a slice takes all of an axis of what has so many, and axes before it stay.
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

Found StridedSlice(const OpView& op, const std::optional<Cut>&) {
  if (!op.cuts[0] || !op.inputs[0]) return std::nullopt;
  const int rank = static_cast<int>(op.inputs[0]->size());
  return TakesAll(op, op.cuts[0]->axis, rank) ? Alike(op, *op.cuts[0]) : std::nullopt;
}

Found StridedSliceGradient(const OpView& op, const std::optional<Cut>&) {
  const auto shape = op.constant(0);
  if (!shape || op.inputs.size() != 5 || !op.cuts[4]) return std::nullopt;
  const Cut& cut = *op.cuts[4];
  if (!TakesAll(op, cut.axis, static_cast<int>(shape->size()))) return std::nullopt;
  SplitRule found = Begun(op, cut);
  found.inputs[0] = IntsWith(*shape, cut.axis, cut);
  found.inputs[4] = PartsOf(cut);
  return found;
}

Found Concat(const OpView& op, const std::optional<Cut>&) {
  const auto first = FirstBatched(op);
  const auto last = op.inputs.size() - 1;
  if (!first) return std::nullopt;
  const auto axis = ConstantAxis(op, static_cast<int>(last), op.inputs[0]);
  const Cut& cut = *op.cuts[*first];
  if (!axis || *axis == cut.axis) return std::nullopt;
  SplitRule found = Begun(op, cut);
  for (size_t i = 0; i < last; ++i) {
    if (!IsKnown(op.inputs[i]) || (*op.inputs[i])[cut.axis] != cut.bounds.back()) {
      return std::nullopt;
    }
    found.inputs[i] = PartsOf(cut);
  }
  return found;
}

Found Split(const OpView& op, const std::optional<Cut>&) {
  const bool even = op.node->op() == "Split";
  const int value = even ? 1 : 0;
  const auto axis = ConstantAxis(op, even ? 0 : 2, op.inputs[value]);
  if (!op.cuts[value] || !axis || *axis == op.cuts[value]->axis) return std::nullopt;
  SplitRule found = Begun(op, *op.cuts[value]);
  found.inputs[value] = PartsOf(*op.cuts[value]);
  return found;
}

// Over constant axes.
Found Reduction(const OpView& op, const std::optional<Cut>&) {
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
  Found found = Alike(op, cut);
  if (!over) {
    if (!Flag(op, "keep_dims")) found->outputs[0].cut.axis -= before;
    return found;
  }
  const bool is_float =
      op.node->attr().count("T") > 0 && op.node->attr().at("T").type() == tensorflow::DT_FLOAT;
  if (op.node->op() == "Sum") {
    found->outputs[0].yield = Yield::kSum;
  } else if (op.node->op() == "Mean" && is_float) {
    found->outputs[0].yield = Yield::kMean;
  } else {
    return std::nullopt;
  }
  return found;
}

Found ArgReduction(const OpView& op, const std::optional<Cut>&) {
  const auto axis = ConstantAxis(op, 1, op.inputs[0]);
  if (!op.cuts[0] || !axis || *axis == op.cuts[0]->axis) return std::nullopt;
  Found found = Alike(op, *op.cuts[0]);
  if (*axis < op.cuts[0]->axis) --found->outputs[0].cut.axis;
  return found;
}

// What is repeated along other axes, or along the cut one from a single row.
Found Tile(const OpView& op, const std::optional<Cut>& wanted) {
  const auto multiples = op.constant(1);
  if (!multiples) return std::nullopt;
  if (op.cuts[0]) {
    const bool apart = multiples->at(op.cuts[0]->axis) == 1;
    return apart ? Alike(op, *op.cuts[0]) : std::nullopt;
  }
  if (!wanted || !IsKnown(op.inputs[0]) || (*op.inputs[0])[wanted->axis] != 1) return std::nullopt;
  SplitRule found = Begun(op, *wanted);
  found.inputs[1] = IntsWith(*multiples, wanted->axis, *wanted);
  return found;
}

Found BroadcastTo(const OpView& op, const std::optional<Cut>& wanted) {
  const auto shape = op.constant(1);
  if (!shape || op.cuts[0] || !wanted || !IsKnown(op.inputs[0])) return std::nullopt;
  const auto in = op.inputs[0]->size(), out = shape->size();
  const int axis = wanted->axis - static_cast<int>(out - in);
  if (axis >= 0 && (*op.inputs[0])[axis] != 1) return std::nullopt;
  SplitRule found = Begun(op, *wanted);
  found.inputs[1] = IntsWith(*shape, wanted->axis, *wanted);
  return found;
}

Found Fill(const OpView& op, const std::optional<Cut>& wanted) {
  const auto shape = op.constant(0);
  if (!shape || !wanted) return std::nullopt;
  SplitRule found = Begun(op, *wanted);
  found.inputs[0] = IntsWith(*shape, wanted->axis, *wanted);
  return found;
}

// The same elements under another shape: the cut's places among them stay.
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

Found Reshape(const OpView& op, const std::optional<Cut>&) {
  if (!op.cuts[0]) return std::nullopt;
  const auto cut = Reshaped(*op.cuts[0], op.inputs[0], op.outputs[0]);
  if (!cut) return std::nullopt;
  Found found = Alike(op, *op.cuts[0]);
  found->outputs[0].cut = *cut;
  if (op.node->op() != "Reshape") return found;
  const auto shape = op.constant(1);
  if (!shape || shape->size() != op.outputs[0]->size()) return std::nullopt;
  found->inputs[1] = IntsWith(*shape, cut->axis, *cut);
  return found;
}

Found Squeeze(const OpView& op, const std::optional<Cut>& wanted) {
  return Integers(op, "squeeze_dims").empty() ? std::nullopt : Reshape(op, wanted);
}

Found Transpose(const OpView& op, const std::optional<Cut>&) {
  const auto order = op.constant(1);
  if (!op.cuts[0] || !order) return std::nullopt;
  Found found = Alike(op, *op.cuts[0]);
  const auto at = std::find(order->begin(), order->end(), op.cuts[0]->axis);
  if (at == order->end()) return std::nullopt;
  found->outputs[0].cut.axis = static_cast<int>(at - order->begin());
  return found;
}

// Each row of a matrix by itself; labels are a vector, or a matrix too.
Found CrossEntropy(const OpView& op, const std::optional<Cut>&) {
  const auto first = FirstBatched(op);
  if (!first || op.cuts[*first]->axis != 0 || op.inputs.size() != 2) return std::nullopt;
  SplitRule found = Begun(op, *op.cuts[*first]);
  for (int i = 0; i < 2; ++i) {
    if (!IsKnown(op.inputs[i]) || op.inputs[i]->front() != op.cuts[*first]->bounds.back()) {
      return std::nullopt;
    }
    found.inputs[i] = PartsOf(*op.cuts[*first]);
  }
  return found;
}

// A matrix's rows by another one, or its gradient.
Found MatrixProduct(const OpView& op, const std::optional<Cut>&) {
  if (op.inputs.size() != 2 || !op.cuts[0] || op.cuts[0]->axis != 0) return std::nullopt;
  if (Flag(op, "transpose_b") && op.IsBatched(1)) return std::nullopt;
  Found found = Alike(op, *op.cuts[0]);
  if (!Flag(op, "transpose_a")) return op.IsBatched(1) ? std::nullopt : found;
  if (!op.IsBatched(1) || op.cuts[1]->axis != 0) return std::nullopt;
  found->inputs[1] = PartsOf(*op.cuts[0]);
  found->outputs[0].yield = Yield::kSum;
  return found;
}

Found OneHot(const OpView& op, const std::optional<Cut>&) {
  return op.cuts[0] && Integer(op, "axis") == -1 ? Alike(op, *op.cuts[0]) : std::nullopt;
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

// There may be fewer rows than sections.
bool EachHasAPart(const SplitRule& how) {
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

std::optional<SplitRule> SeparateByRows(const OpView& op, const std::optional<Cut>& wanted) {
  Found found;
  if (HasWindow(op)) {
    found = SeparateWindow(op);
  } else if (const Rule* rule = Rules().Find(op.node->op())) {
    found = (*rule)(op, wanted);
  }
  return found && EachHasAPart(*found) ? found : std::nullopt;
}

}  // namespace tfswap
