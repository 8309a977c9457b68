#include "grappler/index/most_bytes.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "grappler/index/op_kinds.h"
#include "grappler/index/tensor_bytes.h"
#include "tensorflow/core/grappler/costs/graph_properties.h"

namespace tfswap {

using ::tensorflow::AttrValue;
using ::tensorflow::GraphDef;
using ::tensorflow::NodeDef;
using ::tensorflow::grappler::GraphProperties;
using ::tensorflow::grappler::GrapplerItem;

namespace {

constexpr int64_t kUnknown = -1;
// The most that an output of sizes or positions of dimensions takes.
constexpr int64_t kDimsBytes = 256;

// Set an unknown size of the batch where it enters the graph.
GraphDef WithExamples(GraphDef graph, int64_t examples) {
  for (NodeDef& node : *graph.mutable_node()) {
    if (node.op() != "IteratorGetNext" && node.op() != "OptionalGetValue") continue;
    AttrValue& shapes = (*node.mutable_attr())["output_shapes"];
    for (auto& shape : *shapes.mutable_list()->mutable_shape()) {
      if (shape.dim_size() > 0 && shape.dim(0).size() < 0) shape.mutable_dim(0)->set_size(examples);
    }
  }
  return graph;
}

// Ops whose variant has tensors that count as outputs of other ops.
bool HoldsBatch(const std::string& op) {
  return op == "IteratorGetNextAsOptional" || op == "OptionalFromValue";
}

bool CallsFunctions(const NodeDef& node) {
  for (const auto& [key, value] : node.attr()) {
    if (value.has_func() || value.list().func_size() > 0) return true;
  }
  return node.op() == "Enter" || node.op() == "RefEnter";
}

// Ops whose output is no larger than their first input.
bool Shrinks(const std::string& op) {
  static const auto* ops = new std::unordered_set<std::string>{
      "All", "Any",  "ArgMax", "ArgMin",  "BiasAddGrad",  "Max", "Mean",
      "Min", "Prod", "Slice",  "Squeeze", "StridedSlice", "Sum"};
  return ops->count(op) > 0;
}

// Ops whose outputs are sizes or positions of dimensions.
bool GivesDims(const std::string& op) {
  static const auto* ops = new std::unordered_set<std::string>{
      "BroadcastArgs", "BroadcastGradientArgs", "InvertPermutation", "Range", "Shape", "ShapeN"};
  return ops->count(op) > 0;
}

// Return the bytes of each output of each op; an empty list if one of them is unknown.
std::vector<std::vector<int64_t>> OutputBytes(const GraphIndex& index,
                                              const std::vector<int>& order,
                                              const GraphProperties& properties) {
  std::vector<std::vector<int64_t>> bytes(index.size());
  const auto of_input = [&](int n) {
    if (index.inputs(n).empty()) return kUnknown;
    const TensorId from = index.inputs(n).front();
    const auto& outputs = bytes[from.node];
    return from.port < static_cast<int>(outputs.size()) ? outputs[from.port] : kUnknown;
  };
  for (const int n : order) {
    const NodeDef& node = index.node(n);
    const auto& inferred = properties.GetOutputProperties(node.name());
    for (int port = 0; port < index.outputs(n); ++port) {
      const bool is_variant = index.OutputType({n, port}) == tensorflow::DT_VARIANT;
      if (is_variant && !HoldsBatch(node.op())) return {};
      const bool has = port < static_cast<int>(inferred.size());
      int64_t size = has ? TensorBytes(inferred[port]) : 0;
      if (size == kUnknown && GivesDims(node.op())) size = kDimsBytes;
      if (size == kUnknown && (Shrinks(node.op()) || index.IsAlias(n))) size = of_input(n);
      if (size == kUnknown) return {};
      bytes[n].push_back(size);
    }
  }
  return bytes;
}

// Return the only reader of all that each op allocates; -1 if there are several or none.
std::vector<int> OnlyReaders(const GraphIndex& index) {
  constexpr int kNone = -2, kSeveral = -1;
  std::vector<int> readers(index.size(), kNone);
  for (int n = 0; n < index.size(); ++n) {
    for (size_t i = 0; i < index.inputs(n).size(); ++i) {
      if (i == 0 && index.IsAlias(n)) continue;
      int& reader = readers[index.Root(index.inputs(n)[i]).node];
      reader = reader == kNone || reader == n ? n : kSeveral;
    }
  }
  for (int& reader : readers) reader = std::max(reader, kSeveral);
  return readers;
}

}  // namespace

int64_t MostBytes(const GrapplerItem& given, const GraphIndex& index, int64_t examples) {
  for (int n = 0; n < index.size(); ++n) {
    if (CallsFunctions(index.node(n))) return kUnknown;
  }
  const GrapplerItem item =
      given.WithGraph(examples > 0 ? WithExamples(given.graph, examples) : GraphDef(given.graph));
  GraphProperties properties(item);
  const absl::Status inferred = properties.InferStatically(
      /*assume_valid_feeds=*/true, /*aggressive_shape_inference=*/true,
      /*include_tensor_values=*/false);
  if (!inferred.ok()) return kUnknown;
  std::vector<int> order(index.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(),
            [&](int a, int b) { return index.position(a) < index.position(b); });
  const std::vector<std::vector<int64_t>> bytes = OutputBytes(index, order, properties);
  if (bytes.empty()) return kUnknown;
  const std::vector<int> only_readers = OnlyReaders(index);
  // By op: what its outputs take, and the same and the most of the ops that it alone reads.
  std::vector<int64_t> made(index.size()), read(index.size()), before(index.size());
  int64_t sum = 0;
  for (const int n : order) {
    if (ExternallyOwned().count(index.node(n).op()) > 0) continue;
    for (size_t port = 0; port < bytes[n].size() && !index.IsAlias(n); ++port) {
      if (index.InDeviceMemory({n, static_cast<int>(port)})) made[n] += bytes[n][port];
    }
    // An assignment may replace the variable's buffer while others still read the old one.
    if (index.IsUpdate(n) && index.inputs(n).size() > 1) {
      const TensorId value = index.inputs(n)[1];
      made[n] += bytes[value.node][value.port];
    }
    const int64_t most = std::max(made[n] + read[n], before[n]);
    const int reader = only_readers[n];
    if (reader < 0) {
      sum += most;
    } else {
      read[reader] += made[n];
      before[reader] += most;
    }
  }
  return sum;
}

}  // namespace tfswap
