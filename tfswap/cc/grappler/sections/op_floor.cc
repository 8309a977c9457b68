#include "grappler/sections/op_floor.h"

#include <algorithm>
#include <map>
#include <set>
#include <unordered_set>
#include <utility>
#include <vector>

namespace tfswap {

namespace {

using OpNames = std::unordered_set<std::string>;

// Their outputs are in memory before the step.
const OpNames& PersistentOps() {
  static const auto* ops =
      new OpNames{"_Arg",        "_DeviceArg",     "Const",      "HostConst", "Placeholder",
                  "VarHandleOp", "ReadVariableOp", "VariableV2", "Variable"};
  return *ops;
}

// Kernels that may overwrite an input that has no other reader.
const OpNames& InPlace() {
  static const auto* ops = new OpNames{"Add",
                                       "AddN",
                                       "AddV2",
                                       "BiasAdd",
                                       "Elu",
                                       "EluGrad",
                                       "Exp",
                                       "FusedBatchNormGradV3",
                                       "FusedBatchNormV3",
                                       "LeakyRelu",
                                       "LeakyReluGrad",
                                       "Maximum",
                                       "Minimum",
                                       "Mul",
                                       "Neg",
                                       "RealDiv",
                                       "Relu",
                                       "Relu6",
                                       "Relu6Grad",
                                       "ReluGrad",
                                       "Rsqrt",
                                       "Selu",
                                       "SeluGrad",
                                       "Sigmoid",
                                       "SigmoidGrad",
                                       "Softmax",
                                       "Sqrt",
                                       "Square",
                                       "SquaredDifference",
                                       "Sub",
                                       "Tanh",
                                       "TanhGrad"};
  return *ops;
}

using Port = std::pair<int, int>;  // node and output

// By buffer: its only reader, or -1 if several ops read it.
std::map<Port, int> OnlyReaders(const GraphIndex& index) {
  std::map<Port, int> readers;
  for (int n = 0; n < index.size(); ++n) {
    for (size_t i = 0; i < index.inputs(n).size(); ++i) {
      if (i == 0 && index.IsAlias(n)) continue;
      const TensorId root = index.Root(index.inputs(n)[i]);
      auto [reader, is_first] = readers.try_emplace({root.node, root.port}, n);
      if (!is_first && reader->second != n) reader->second = -1;
    }
  }
  return readers;
}

class Floor {
 public:
  Floor(const InferredGraph& graph, const SectionPlan& plan)
      : graph_(graph),
        index_(graph.index()),
        plan_(plan),
        only_readers_(OnlyReaders(graph.index())) {}

  OpFloor Find() {
    for (int n = 0; n < index_.size(); ++n) {
      if (!index_.IsManaged(n)) continue;
      if (plan_.IsCut(n)) {
        for (int64_t s = 0; s < plan_.count; ++s) ConsiderCopy(n, s);
      } else if (!index_.IsAlias(n)) {
        ConsiderWhole(n);
      }
    }
    return std::move(floor_);
  }

 private:
  // 0 if unknown, in other memory, or persistent.
  int64_t BytesOf(TensorId tensor) const {
    return PersistentOps().count(index_.node(tensor.node).op()) > 0 ? 0 : graph_.BytesOf(tensor);
  }
  // Bytes of a piece along an axis.
  int64_t BytesOf(TensorId tensor, int axis, int64_t extent) const {
    const Dims& dims = graph_.DimsOf(tensor);
    const bool known = dims && axis < static_cast<int>(dims->size()) && (*dims)[axis] > 0;
    return known ? BytesOf(tensor) / (*dims)[axis] * extent : 0;
  }
  const OutputPart* PartOf(TensorId tensor) const {
    return plan_.IsCut(tensor.node) ? &plan_.split_rules[tensor.node]->outputs[tensor.port]
                                    : nullptr;
  }
  void Consider(int n, int64_t bytes) {
    if (bytes > floor_.bytes) floor_ = {bytes, index_.node(n).name()};
  }

  // While parts are concatenated or summed, both inputs and output exist.
  void ConsiderJoin(TensorId tensor) {
    if (PartOf(tensor) != nullptr) Consider(tensor.node, 2 * BytesOf(tensor));
  }

  void ConsiderWhole(int n) {
    std::set<Port> read;
    int64_t bytes = 0, over = 0;
    for (const TensorId& input : index_.inputs(n)) {
      ConsiderJoin(input);
      const TensorId root = plan_.IsCut(input.node) ? input : index_.Root(input);
      if (!read.insert({root.node, root.port}).second) continue;
      const int64_t size = BytesOf(root);
      bytes += size;
      if (ReadOnlyBy(n, root) && size == BytesOf({n, 0})) over = size;
    }
    for (int port = 0; port < index_.outputs(n); ++port) bytes += BytesOf({n, port});
    if (InPlace().count(index_.node(n).op()) > 0) bytes -= over;
    Consider(n, bytes);
  }

  void ConsiderCopy(int n, int64_t section) {
    const SplitRule& how = *plan_.split_rules[n];
    std::set<Port> read;
    int64_t bytes = 0, over = 0, made = 0;
    for (int port = 0; port < index_.outputs(n); ++port) {
      const OutputPart& part = how.outputs[port];
      const Piece own = part.kind == OutputKind::kPart ? part.cut.part(section) : Piece{};
      made += part.kind == OutputKind::kPart
                  ? BytesOf({n, port}, part.cut.axis, own.end - own.begin)
                  : BytesOf({n, port});
    }
    for (size_t i = 0; i < how.inputs.size(); ++i) {
      const TensorId input = index_.inputs(n)[i];
      const InputPart& part = how.inputs[i];
      if (part.kind == InputKind::kInts || !read.insert({input.node, input.port}).second) continue;
      if (part.kind == InputKind::kWhole) {
        ConsiderJoin(input);
        bytes += BytesOf(input);
        continue;
      }
      const int64_t piece = ConsiderPiece(n, input, part, section);
      bytes += piece;
      if (ReadOnlyBy(n, index_.Root(input)) && piece == made) over = piece;
    }
    if (index_.IsAlias(n)) return;
    if (InPlace().count(index_.node(n).op()) > 0) bytes -= over;
    if (!how.kept.empty() && !how.kept[section].IsAll()) {
      const KeptRegion& kept = how.kept[section];
      const int64_t all = made / std::max<int64_t>(Elements(kept.size), 1) * Elements(kept.made);
      Consider(n, all + made);
      made = all;
    }
    Consider(n, bytes + made);
  }

  // A slice or concatenation exists beside its inputs.
  int64_t ConsiderPiece(int n, TensorId input, const InputPart& part, int64_t section) {
    const Piece piece = part.pieces[section];
    const int64_t bytes = BytesOf(input, part.axis, piece.end - piece.begin);
    const OutputPart* given = PartOf(input);
    if (given == nullptr || given->kind != OutputKind::kPart || given->cut.axis != part.axis) {
      ConsiderJoin(input);
      Consider(n, BytesOf(index_.Root(input)) + (part.axis == 0 ? 0 : bytes));
      return bytes;
    }
    if (given->cut.part(section) == piece) return bytes;
    int64_t sources = 0;
    for (int64_t s = 0; s < plan_.count; ++s) {
      const Piece own = given->cut.part(s);
      if (own.begin < piece.end && piece.begin < own.end) {
        sources += BytesOf(input, part.axis, own.end - own.begin);
      }
    }
    Consider(n, sources + bytes);
    return bytes;
  }

  bool ReadOnlyBy(int n, TensorId root) const {
    const auto reader = only_readers_.find({root.node, root.port});
    return reader != only_readers_.end() && reader->second == n;
  }

  const InferredGraph& graph_;
  const GraphIndex& index_;
  const SectionPlan& plan_;
  const std::map<Port, int> only_readers_;
  OpFloor floor_;
};

}  // namespace

OpFloor FloorOf(const InferredGraph& graph, const SectionPlan& plan) {
  return Floor(graph, plan).Find();
}

}  // namespace tfswap
