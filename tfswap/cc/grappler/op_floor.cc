#include "grappler/op_floor.h"

#include <map>
#include <set>
#include <unordered_set>
#include <utility>
#include <vector>

#include "grappler/tensor_bytes.h"

namespace tfswap {

using ::tensorflow::grappler::GraphProperties;

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

class Sizes {
 public:
  Sizes(const GraphIndex& index, const GraphProperties& properties)
      : index_(index), outputs_(index.size()) {
    for (int n = 0; n < index.size(); ++n) {
      for (const auto& output : properties.GetOutputProperties(index.node(n).name())) {
        outputs_[n].push_back(TensorBytes(output));
      }
    }
  }

  // 0 where it is not known, in other memory, or there anyway.
  int64_t Of(TensorId tensor) const {
    const auto& outputs = outputs_[tensor.node];
    if (tensor.port >= static_cast<int>(outputs.size()) || outputs[tensor.port] < 0) return 0;
    if (!index_.InDeviceMemory(tensor)) return 0;
    return ThereAnyway().count(index_.node(tensor.node).op()) > 0 ? 0 : outputs[tensor.port];
  }

 private:
  const GraphIndex& index_;
  std::vector<std::vector<int64_t>> outputs_;
};

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

}  // namespace

OpFloor FloorOf(const GraphIndex& index, const GraphProperties& inferred_properties) {
  const Sizes sizes(index, inferred_properties);
  const std::map<Port, int> only_readers = OnlyReaders(index);
  OpFloor floor;
  for (int n = 0; n < index.size(); ++n) {
    if (!index.IsManaged(n) || index.IsAlias(n)) continue;
    std::set<Port> read;
    int64_t bytes = 0, over = 0;
    for (const TensorId& input : index.inputs(n)) {
      const TensorId root = index.Root(input);
      if (!read.insert({root.node, root.port}).second) continue;
      const int64_t size = sizes.Of(root);
      bytes += size;
      auto reader = only_readers.find({root.node, root.port});
      const bool mine = reader != only_readers.end() && reader->second == n;
      if (mine && size == sizes.Of({n, 0})) over = size;
    }
    for (int port = 0; port < index.outputs(n); ++port) bytes += sizes.Of({n, port});
    if (InPlace().count(index.node(n).op()) > 0) bytes -= over;
    if (bytes > floor.bytes) floor = {bytes, index.node(n).name()};
  }
  return floor;
}

}  // namespace tfswap
