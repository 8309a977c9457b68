#include "grappler/index/fingerprint.h"

#include <algorithm>
#include <map>
#include <unordered_map>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "core/memory/copy.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/graph/tensor_id.h"

namespace tfswap {

using ::tensorflow::GraphDef;
using ::tensorflow::NodeDef;

namespace {

std::string ToText(const tensorflow::TensorShapeProto& shape) {
  std::string text = shape.unknown_rank() ? "?" : "[";
  for (const auto& dim : shape.dim()) absl::StrAppend(&text, dim.size(), ",");
  return text;
}

// Return the types and shapes that an attribute holds; "" if there are none.
std::string ToText(const std::string& key, const tensorflow::AttrValue& value) {
  constexpr int kMaxIntegers = 16;
  switch (value.value_case()) {
    case tensorflow::AttrValue::kType:
      return absl::StrCat(value.type());
    case tensorflow::AttrValue::kShape:
      return ToText(value.shape());
    case tensorflow::AttrValue::kList: {
      std::string text;
      for (const auto& shape : value.list().shape()) text += ToText(shape);
      return text;
    }
    case tensorflow::AttrValue::kTensor: {
      std::string text = ToText(value.tensor().tensor_shape());
      tensorflow::Tensor tensor;
      const bool integers = value.tensor().dtype() == tensorflow::DT_INT32 ||
                            value.tensor().dtype() == tensorflow::DT_INT64;
      if (integers && tensor.FromProto(value.tensor()) && tensor.NumElements() <= kMaxIntegers) {
        text += tensor.SummarizeValue(kMaxIntegers);
      }
      return text;
    }
    default:
      return "";
  }
}

// Types, shapes and the small integers from which shapes are computed identify a graph; other
// attributes hold names that differ between processes.
std::map<std::string, std::string> DistinguishingAttributes(const NodeDef& node) {
  std::map<std::string, std::string> attributes;
  for (const auto& [key, value] : node.attr()) {
    std::string shown = ToText(key, value);
    if (!shown.empty()) attributes.emplace(key, std::move(shown));
  }
  return attributes;
}

std::string Hexadecimal(const std::string& text) {
  return absl::StrCat(absl::Hex(Checksum(text.data(), text.size()), absl::kZeroPad16));
}

// Remove the prefixes "StatefulPartitionedCall_1/" that inlining has added to a name.
std::string WithoutCalls(absl::string_view name) {
  std::vector<absl::string_view> kept;
  for (const absl::string_view part : absl::StrSplit(name, '/')) {
    if (!absl::StartsWith(part, "PartitionedCall") &&
        !absl::StartsWith(part, "StatefulPartitionedCall")) {
      kept.push_back(part);
    }
  }
  return absl::StrJoin(kept, "/");
}

}  // namespace

std::string Fingerprint(const GraphDef& graph) {
  std::vector<const NodeDef*> nodes;
  nodes.reserve(graph.node_size());
  for (const NodeDef& node : graph.node()) nodes.push_back(&node);
  std::sort(nodes.begin(), nodes.end(),
            [](const NodeDef* a, const NodeDef* b) { return a->name() < b->name(); });
  std::string text;
  auto mix = [&text](absl::string_view part) { absl::StrAppend(&text, part, "\n"); };
  for (const NodeDef* node : nodes) {
    mix(node->name());
    mix(node->op());
    for (const std::string& input : node->input()) mix(input);
    for (const auto& [key, value] : DistinguishingAttributes(*node)) {
      mix(key);
      mix(value);
    }
  }
  return Hexadecimal(text);
}

std::string PortableFingerprint(const GraphDef& graph) {
  std::unordered_map<std::string, std::string> portable;
  for (const NodeDef& node : graph.node()) {
    const auto index = node.attr().find("index");
    portable[node.name()] = node.op() == "_Arg" && index != node.attr().end()
                                ? absl::StrCat("_Arg ", index->second.i())
                                : WithoutCalls(node.name());
  }
  std::vector<std::string> lines;
  for (const NodeDef& node : graph.node()) {
    if (node.op() == "NoOp") continue;
    std::string line = absl::StrCat(portable[node.name()], "\t", node.op());
    for (const std::string& input : node.input()) {
      const tensorflow::TensorId id = tensorflow::ParseTensorName(input);
      if (id.index() < 0) continue;
      absl::StrAppend(&line, "\t", portable[std::string(id.node())], ":", id.index());
    }
    for (const auto& [key, value] : DistinguishingAttributes(node))
      absl::StrAppend(&line, "\t", key, "=", value);
    lines.push_back(std::move(line));
  }
  std::sort(lines.begin(), lines.end());
  return Hexadecimal(absl::StrJoin(lines, "\n"));
}

}  // namespace tfswap
