#include "grappler/rules/window_rules.h"

#include <algorithm>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "grappler/index/op_attributes.h"
#include "grappler/sections/row_parts.h"

namespace tfswap {

namespace {

using OptionalRule = std::optional<SplitRule>;

constexpr int kRows = 1, kColumns = 2;
constexpr int kImageRank = 4;

// Relates rows of an output to the rows of the input that its windows cover.
struct Window {
  int64_t stride = 1;
  int64_t extent = 1;  // rows that it covers
  int64_t top = 0, left = 0, right = 0;
  int64_t in_rows = 0, out_rows = 0;

  // Rows of the input, including padding, that the rows `out` are computed from.
  Piece Covered(Piece out) const {
    return {out.begin * stride - top, (out.end - 1) * stride - top + extent};
  }
  Piece Inside(Piece in) const {
    return {std::max<int64_t>(in.begin, 0), std::min(in.end, in_rows)};
  }
  std::vector<int64_t> Paddings(Piece covered) const {
    const int64_t above = std::max<int64_t>(-covered.begin, 0);
    const int64_t below = std::max<int64_t>(covered.end - in_rows, 0);
    return {0, 0, above, below, left, right, 0, 0};
  }
};

// `extents` are the rows and columns of a window, `in` and `out` the shapes.
std::optional<Window> WindowOf(const OpView& op, const Dims& in, const Dims& out,
                               std::vector<int64_t> extents) {
  const std::vector<int64_t> strides = Integers(op, "strides");
  const std::vector<int64_t> dilations = Integers(op, "dilations");
  if (!IsChannelsLast(op) || !IsKnown(in) || !IsKnown(out) || in->size() != kImageRank ||
      out->size() != kImageRank || strides.size() != kImageRank) {
    return std::nullopt;
  }
  if (dilations.size() == kImageRank) {
    for (int i = 0; i < 2; ++i) extents[i] = (extents[i] - 1) * dilations[kRows + i] + 1;
  }
  Window window{strides[kRows], extents[0], 0, 0, 0, (*in)[kRows], (*out)[kRows]};
  const std::string& padding = Text(op, "padding");
  if (padding == "SAME") {
    const auto all = [&](int axis) {
      return std::max<int64_t>(
          ((*out)[axis] - 1) * strides[axis] + extents[axis - kRows] - (*in)[axis], 0);
    };
    window.top = all(kRows) / 2;
    window.left = all(kColumns) / 2;
    window.right = all(kColumns) - window.left;
  } else if (padding == "EXPLICIT") {
    const std::vector<int64_t> paddings = Integers(op, "explicit_paddings");
    if (paddings.size() != 2 * kImageRank) return std::nullopt;
    window.top = paddings[2 * kRows];
    window.left = paddings[2 * kColumns];
    window.right = paddings[2 * kColumns + 1];
  } else if (padding != "VALID") {
    return std::nullopt;
  }
  return window;
}

// Split the output; the copies read the rows of the inputs `images` that its windows cover.
OptionalRule Forward(const OpView& op, const Window& window, const std::vector<int>& images) {
  SplitRule found = MakeRule(op, EvenCut(kRows, window.out_rows, op.count));
  for (int64_t s = 0; s < op.count; ++s) {
    const Piece covered = window.Covered(found.outputs[0].cut.part(s));
    const Piece inside = window.Inside(covered);
    if (inside.begin >= inside.end) return std::nullopt;
    found.paddings.push_back(window.Paddings(covered));
    for (int image : images) {
      found.inputs[image].kind = InputKind::kPart;
      found.inputs[image].axis = kRows;
      found.inputs[image].pieces.push_back(inside);
    }
  }
  return found;
}

// An input gradient: its rows are split, and each copy computes all windows that touch its rows.
struct Backward {
  std::vector<Piece> out;   // rows of the output gradient to read
  std::vector<Piece> made;  // rows computed from them, including padding
  SplitRule found;
};

std::optional<Backward> BackwardBy(const OpView& op, const Window& window) {
  const Cut cut = EvenCut(kRows, window.in_rows, op.count);
  Backward backward{{}, {}, MakeRule(op, cut)};
  for (int64_t s = 0; s < op.count; ++s) {
    const Piece part = cut.part(s);
    // The first window that reaches the part, or the last one that starts before it.
    const int64_t reaching = (part.begin + window.top - window.extent) / window.stride + 1;
    const int64_t begun = (part.begin + window.top) / window.stride;
    const int64_t begin = part.begin + window.top < window.extent ? 0 : std::min(reaching, begun);
    const int64_t end = std::min((part.end - 1 + window.top) / window.stride + 1, window.out_rows);
    if (begin >= end) return std::nullopt;
    Piece made = window.Covered({begin, end});
    const int64_t untouched = part.end - made.end;  // rows between windows, or after the last
    if (made.begin > part.begin || untouched >= window.stride) return std::nullopt;
    made.end = std::max(made.end, part.end);
    backward.out.push_back({begin, end});
    backward.made.push_back(made);
    std::vector<int64_t> shape = *op.outputs[0];
    KeptRegion kept;
    kept.begin = {0, part.begin - made.begin, window.left, 0};
    shape[kRows] = part.end - part.begin;
    kept.size = shape;
    shape[kRows] = made.end - made.begin;
    shape[kColumns] += window.left + window.right;
    kept.made = std::move(shape);
    backward.found.kept.push_back(std::move(kept));
  }
  // Rows of the padding are computed as well and dropped: oneDNN has no gradients of explicit
  // padding.
  backward.found.paddings.assign(op.count, std::vector<int64_t>(2 * kImageRank, 0));
  return backward;
}

// The output sizes of each section's gradient.
InputPart MadeSizes(const Backward& backward) {
  InputPart input;
  input.kind = InputKind::kInts;
  for (const KeptRegion& kept : backward.found.kept) input.ints.push_back(kept.made);
  return input;
}

InputPart Rows(const std::vector<Piece>& pieces) {
  return {InputKind::kPart, kRows, pieces, {}, {}};
}

std::vector<int64_t> ExtentsOf(const Dims& filter) { return {(*filter)[0], (*filter)[1]}; }

// A fused op must have one element per channel.
OptionalRule Convolution(const OpView& op) {
  if (op.inputs.size() < 2 || !op.cuts[0] || !IsKnown(op.inputs[1])) return std::nullopt;
  for (size_t i = 2; i < op.inputs.size(); ++i) {
    const Dims& fused = op.inputs[i];
    if (!IsKnown(fused)) return std::nullopt;
    if (fused->size() > 1 && Product(*fused, 0, fused->size() - 1) != 1) return std::nullopt;
  }
  const auto window = WindowOf(op, op.inputs[0], op.outputs[0], ExtentsOf(op.inputs[1]));
  return window ? Forward(op, *window, {0}) : std::nullopt;
}

OptionalRule FilterGradient(const OpView& op) {
  if (op.inputs.size() != 3 || !IsKnown(op.outputs[0])) return std::nullopt;
  const auto window = WindowOf(op, op.inputs[0], op.inputs[2], ExtentsOf(op.outputs[0]));
  if (!window) return std::nullopt;
  OptionalRule found = Forward(op, *window, {0});
  if (!found) return std::nullopt;
  found->inputs[2] = PartsOf(found->outputs[0].cut);
  found->outputs[0].kind = OutputKind::kSum;
  // oneDNN has no gradients of explicit padding.
  std::swap(found->inputs[0].zeros, found->paddings);
  found->paddings.assign(op.count, std::vector<int64_t>(2 * kImageRank, 0));
  return found;
}

OptionalRule InputGradient(const OpView& op) {
  if (op.inputs.size() != 3 || !IsKnown(op.inputs[1])) return std::nullopt;
  const auto sizes = op.constant(0);
  const auto window = WindowOf(op, op.outputs[0], op.inputs[2], ExtentsOf(op.inputs[1]));
  if (!window || !sizes || sizes->size() != kImageRank) return std::nullopt;
  auto backward = BackwardBy(op, *window);
  if (!backward) return std::nullopt;
  backward->found.inputs[0] = MadeSizes(*backward);
  backward->found.inputs[2] = Rows(backward->out);
  return std::move(backward->found);
}

// Poolings without padding.
std::optional<Window> PoolOf(const OpView& op, const Dims& in, const Dims& out) {
  const std::vector<int64_t> extents = Integers(op, "ksize");
  if (extents.size() != kImageRank || extents[0] != 1 || extents[3] != 1) return std::nullopt;
  auto window = WindowOf(op, in, out, {extents[kRows], extents[kColumns]});
  if (!window || window->left != 0 || window->right != 0 || window->top != 0) return std::nullopt;
  const Piece covered = window->Covered({0, window->out_rows});
  return covered.end <= window->in_rows ? window : std::nullopt;
}

OptionalRule Pool(const OpView& op) {
  if (!op.cuts[0]) return std::nullopt;
  const auto window = PoolOf(op, op.inputs[0], op.outputs[0]);
  return window ? Forward(op, *window, {0}) : std::nullopt;
}

OptionalRule PoolGradient(const OpView& op) {
  const bool of_mean = op.node->op() == "AvgPoolGrad";
  const size_t given = of_mean ? 1 : 2;
  if (op.inputs.size() != given + 1) return std::nullopt;
  const auto window = PoolOf(op, op.outputs[0], op.inputs[given]);
  if (!window) return std::nullopt;
  auto backward = BackwardBy(op, *window);
  if (!backward) return std::nullopt;
  SplitRule& found = backward->found;
  found.inputs[given] = Rows(backward->out);
  if (!of_mean) {
    found.inputs[0] = Rows(backward->made);
    found.inputs[1] = Rows(backward->out);
    return std::move(found);
  }
  const auto sizes = op.constant(0);
  if (!sizes || sizes->size() != kImageRank) return std::nullopt;
  found.inputs[0] = MadeSizes(*backward);
  return std::move(found);
}

using Rule = OptionalRule (*)(const OpView&);

const std::unordered_map<std::string, Rule>& Rules() {
  static const auto* rules = new std::unordered_map<std::string, Rule>({
      {"AvgPool", Pool},
      {"AvgPoolGrad", PoolGradient},
      {"Conv2D", Convolution},
      {"Conv2DBackpropFilter", FilterGradient},
      {"Conv2DBackpropInput", InputGradient},
      {"DepthwiseConv2dNative", Convolution},
      {"DepthwiseConv2dNativeBackpropFilter", FilterGradient},
      {"DepthwiseConv2dNativeBackpropInput", InputGradient},
      {"MaxPool", Pool},
      {"MaxPoolGrad", PoolGradient},
      {"_FusedConv2D", Convolution},
  });
  return *rules;
}

}  // namespace

bool HasWindow(const OpView& op) { return Rules().count(op.node->op()) > 0; }

std::optional<SplitRule> SplitWindow(const OpView& op) { return Rules().at(op.node->op())(op); }

}  // namespace tfswap
