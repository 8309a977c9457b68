#include "grappler/rewrite/variable_rows.h"

#include <algorithm>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor.pb.h"
#include "tensorflow/core/framework/types.h"
#include "tensorflow/core/graph/tensor_id.h"
#include "tensorflow/core/util/device_name_utils.h"

namespace tfswap {

using ::tensorflow::GraphDef;
using ::tensorflow::NodeDef;
using ::tensorflow::ParseTensorName;

namespace {

bool IsOnCpu(const NodeDef& node) {
  tensorflow::DeviceNameUtils::ParsedName device;
  return tensorflow::DeviceNameUtils::ParseFullName(node.device(), &device) &&
         device.type == tensorflow::DEVICE_CPU;
}

int64_t Integer(const NodeDef& node, const std::string& name) {
  const auto attribute = node.attr().find(name);
  return attribute == node.attr().end() ? 0 : attribute->second.i();
}

// Return whether the bytes of a variable that is read can be copied.
bool CanCopy(const NodeDef& read) {
  const auto type = read.attr().find("dtype");
  return type != read.attr().end() && tensorflow::DataTypeCanUseMemcpy(type->second.type());
}

bool IsControl(const std::string& input) { return !input.empty() && input[0] == '^'; }

class RowReads {
 public:
  explicit RowReads(const GraphDef& graph) : graph_(graph) {
    for (const NodeDef& node : graph.node()) {
      nodes_[node.name()] = &node;
      for (const std::string& input : node.input()) {
        readers_[std::string(ParseTensorName(input).node())].push_back(&node);
      }
    }
  }

  GraphDef Make() {
    for (const NodeDef& node : graph_.node()) {
      if (node.op() == "ReadVariableOp" && ServesOnlyGathers(node)) Replace(node);
      const bool gathers = node.op() == "ResourceGather" && Integer(node, "batch_dims") == 0;
      if (gathers && IsOnCpu(node) && CanCopy(node)) Replace(node, node);
    }
    if (gathers_.empty()) return graph_;
    GraphDef result;
    *result.mutable_library() = graph_.library();
    *result.mutable_versions() = graph_.versions();
    for (const NodeDef& node : graph_.node()) {
      if (replaced_.count(node.name()) > 0) continue;
      const auto gather = gathers_.find(node.name());
      NodeDef* out = result.add_node();
      *out = gather == gathers_.end() ? node : gather->second;
      WaitForGathers(out);
    }
    return result;
  }

 private:
  // Return whether `node` gathers rows from the output of `read`.
  bool IsRowGather(const NodeDef& node, const NodeDef& read) const {
    if (node.op() != "GatherV2" || Integer(node, "batch_dims") != 0 || node.input_size() < 3 ||
        node.input(0) != read.name() || ParseTensorName(node.input(1)).node() == read.name()) {
      return false;
    }
    const auto axis = nodes_.find(std::string(ParseTensorName(node.input(2)).node()));
    if (axis == nodes_.end() || axis->second->op() != "Const") return false;
    tensorflow::Tensor value;
    if (!value.FromProto(axis->second->attr().at("value").tensor()) || value.NumElements() != 1) {
      return false;
    }
    return value.dtype() == tensorflow::DT_INT32
               ? value.flat<int32_t>()(0) == 0
               : value.dtype() == tensorflow::DT_INT64 && value.flat<int64_t>()(0) == 0;
  }

  bool ServesOnlyGathers(const NodeDef& read) const {
    const auto readers = readers_.find(read.name());
    if (!IsOnCpu(read) || !CanCopy(read) || readers == readers_.end()) return false;
    std::vector<const NodeDef*> gathers, waiting;
    for (const NodeDef* node : readers->second) {
      if (IsRowGather(*node, read) && IsOnCpu(*node)) {
        gathers.push_back(node);
      } else if (std::find(node->input().begin(), node->input().end(),
                           absl::StrCat("^", read.name())) != node->input().end()) {
        waiting.push_back(node);
      } else {
        return false;
      }
    }
    return !gathers.empty() && !Reach(waiting, gathers);
  }

  // Return whether one of `ends` depends on one of `begins`, which will wait for them.
  bool Reach(std::vector<const NodeDef*> begins, const std::vector<const NodeDef*>& ends) const {
    std::unordered_set<const NodeDef*> seen(begins.begin(), begins.end());
    for (size_t i = 0; i < begins.size(); ++i) {
      if (std::find(ends.begin(), ends.end(), begins[i]) != ends.end()) return true;
      const auto readers = readers_.find(begins[i]->name());
      if (readers == readers_.end()) continue;
      for (const NodeDef* reader : readers->second) {
        if (seen.insert(reader).second) begins.push_back(reader);
      }
    }
    return false;
  }

  void Replace(const NodeDef& read) {
    for (const NodeDef* node : readers_.at(read.name())) {
      if (node->op() != "GatherV2" || node->input(0) != read.name()) continue;
      Replace(read, *node);
      replaced_[read.name()].push_back(node->name());
    }
  }

  // `read` has the variable, `gather` the indices; both may be one node.
  void Replace(const NodeDef& read, const NodeDef& gather) {
    NodeDef rows;
    rows.set_name(gather.name());
    rows.set_op("_GatherVariableRows");
    rows.set_device(gather.device());
    rows.add_input(read.input(0));
    rows.add_input(gather.input(1));
    for (const NodeDef* of : {&read, &gather}) {
      for (const std::string& input : of->input()) {
        const bool known =
            std::find(rows.input().begin(), rows.input().end(), input) != rows.input().end();
        if (IsControl(input) && !known && input != absl::StrCat("^", read.name())) {
          rows.add_input(input);
        }
      }
    }
    (*rows.mutable_attr())["dtype"] = read.attr().at("dtype");
    (*rows.mutable_attr())["Tindices"] = gather.attr().at("Tindices");
    gathers_[gather.name()] = std::move(rows);
  }

  // Let a node that waits for a replaced read wait for the gathers instead.
  void WaitForGathers(NodeDef* node) const {
    std::vector<std::string> inputs;
    for (const std::string& input : node->input()) {
      const auto read = replaced_.find(IsControl(input) ? input.substr(1) : "");
      if (read == replaced_.end()) {
        inputs.push_back(input);
        continue;
      }
      for (const std::string& gather : read->second) {
        const std::string wait = absl::StrCat("^", gather);
        if (gather != node->name() &&
            std::find(inputs.begin(), inputs.end(), wait) == inputs.end()) {
          inputs.push_back(wait);
        }
      }
    }
    node->clear_input();
    for (std::string& input : inputs) node->add_input(std::move(input));
  }

  const GraphDef& graph_;
  std::unordered_map<std::string, const NodeDef*> nodes_;
  std::unordered_map<std::string, std::vector<const NodeDef*>> readers_;
  std::unordered_map<std::string, std::vector<std::string>> replaced_;  // read -> its gathers
  std::unordered_map<std::string, NodeDef> gathers_;
};

}  // namespace

GraphDef WithRowReads(const GraphDef& graph) { return RowReads(graph).Make(); }

}  // namespace tfswap
