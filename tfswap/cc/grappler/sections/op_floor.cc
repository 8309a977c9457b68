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

// In use before the step.
const OpNames& ThereAnyway() {
  static const auto* ops =
      new OpNames{"_Arg",        "_DeviceArg",     "Const",      "HostConst", "Placeholder",
                  "VarHandleOp", "ReadVariableOp", "VariableV2", "Variable"};
  return *ops;
}

// Kernels that write over an input which nobody else reads.
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

// By buffer: one that reads it, or -1 if several do.
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
        for (int64_t s = 0; s < plan_.count; ++s) LookAtCopy(n, s);
      } else if (!index_.IsAlias(n)) {
        LookAtWhole(n);
      }
    }
    return std::move(floor_);
  }

 private:
  // 0 where it is not known, in other memory, or there anyway.
  int64_t BytesOf(TensorId tensor) const {
    return ThereAnyway().count(index_.node(tensor.node).op()) > 0 ? 0 : graph_.BytesOf(tensor);
  }
  // Of a piece along an axis.
  int64_t BytesOf(TensorId tensor, int axis, int64_t extent) const {
    const Dims& dims = graph_.DimsOf(tensor);
    const bool known = dims && axis < static_cast<int>(dims->size()) && (*dims)[axis] > 0;
    return known ? BytesOf(tensor) / (*dims)[axis] * extent : 0;
  }
  const OutputPart* PartOf(TensorId tensor) const {
    return plan_.IsCut(tensor.node) ? &plan_.separations[tensor.node]->outputs[tensor.port]
                                    : nullptr;
  }
  void Look(int n, int64_t bytes) {
    if (bytes > floor_.bytes) floor_ = {bytes, index_.node(n).name()};
  }

  // Parts of it are put together, or the summands of a sum are added up: both are there then.
  void LookAtJoint(TensorId tensor) {
    if (PartOf(tensor) != nullptr) Look(tensor.node, 2 * BytesOf(tensor));
  }

  void LookAtWhole(int n) {
    std::set<Port> read;
    int64_t bytes = 0, over = 0;
    for (const TensorId& input : index_.inputs(n)) {
      LookAtJoint(input);
      const TensorId root = plan_.IsCut(input.node) ? input : index_.Root(input);
      if (!read.insert({root.node, root.port}).second) continue;
      const int64_t size = BytesOf(root);
      bytes += size;
      if (ReadOnlyBy(n, root) && size == BytesOf({n, 0})) over = size;
    }
    for (int port = 0; port < index_.outputs(n); ++port) bytes += BytesOf({n, port});
    if (InPlace().count(index_.node(n).op()) > 0) bytes -= over;
    Look(n, bytes);
  }

  void LookAtCopy(int n, int64_t section) {
    const SplitRule& how = *plan_.separations[n];
    std::set<Port> read;
    int64_t bytes = 0, over = 0, made = 0;
    for (int port = 0; port < index_.outputs(n); ++port) {
      const OutputPart& part = how.outputs[port];
      const Piece own = part.yield == Yield::kPart ? part.cut.part(section) : Piece{};
      made += part.yield == Yield::kPart ? BytesOf({n, port}, part.cut.axis, own.end - own.begin)
                                         : BytesOf({n, port});
    }
    for (size_t i = 0; i < how.inputs.size(); ++i) {
      const TensorId input = index_.inputs(n)[i];
      const InputPart& part = how.inputs[i];
      if (part.share == Share::kInts || !read.insert({input.node, input.port}).second) continue;
      if (part.share == Share::kWhole) {
        LookAtJoint(input);
        bytes += BytesOf(input);
        continue;
      }
      const int64_t piece = LookAtPiece(n, input, part, section);
      bytes += piece;
      if (ReadOnlyBy(n, index_.Root(input)) && piece == made) over = piece;
    }
    if (index_.IsAlias(n)) return;
    if (InPlace().count(index_.node(n).op()) > 0) bytes -= over;
    if (!how.kept.empty() && !how.kept[section].IsAll()) {
      const Kept& kept = how.kept[section];
      const int64_t all = made / std::max<int64_t>(Elements(kept.size), 1) * Elements(kept.made);
      Look(n, all + made);
      made = all;
    }
    Look(n, bytes + made);
  }

  // What is cut out of a whole, or put together of parts, is there beside what it is made of.
  int64_t LookAtPiece(int n, TensorId input, const InputPart& part, int64_t section) {
    const Piece piece = part.pieces[section];
    const int64_t bytes = BytesOf(input, part.axis, piece.end - piece.begin);
    const OutputPart* given = PartOf(input);
    if (given == nullptr || given->yield != Yield::kPart || given->cut.axis != part.axis) {
      LookAtJoint(input);
      Look(n, BytesOf(index_.Root(input)) + (part.axis == 0 ? 0 : bytes));
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
    Look(n, sources + bytes);
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
