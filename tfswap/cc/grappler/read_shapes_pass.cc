// TensorFlow's wheels are built with NDEBUG, on which the layout of its graphs' nodes depends.
#ifndef NDEBUG
#define NDEBUG
#endif

// Lets the gradients of poolings read shapes (index/pooling_gradients.h).

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/util/graph_mark.h"
#include "grappler/index/pooling_gradients.h"
#include "tensorflow/core/common_runtime/optimization_registry.h"
#include "tensorflow/core/graph/graph.h"

namespace tfswap {

using ::tensorflow::Edge;
using ::tensorflow::Graph;
using ::tensorflow::Node;
using ::tensorflow::NodeDef;

namespace {

bool IsOfOneDnn(const Node& node) {
  return node.type_string() == "_MklNativeMaxPoolGrad" ||
         node.type_string() == "_MklNativeMaxPool3DGrad";
}

absl::Status ReadShapes(Node* gradient, Graph* graph) {
  for (int slot = 0; slot < kPoolingShapes; ++slot) {
    const Edge* edge = nullptr;
    TF_RETURN_IF_ERROR(gradient->input_edge(slot, &edge));
    Node* from = edge->src();
    const int port = edge->src_output();
    NodeDef def;
    def.set_name(graph->NewName(absl::StrCat("tfswap/shape/", gradient->name(), "/", slot)));
    def.set_op("_ShapeOnly");
    def.set_device(gradient->def().device());
    def.add_input(port == 0 ? from->name() : absl::StrCat(from->name(), ":", port));
    (*def.mutable_attr())["T"].set_type(from->output_type(port));
    absl::Status status;
    Node* shape = graph->AddNode(def, &status);
    TF_RETURN_IF_ERROR(status);
    shape->set_assigned_device_name_index(gradient->assigned_device_name_index());
    graph->AddEdge(from, port, shape, 0);
    TF_RETURN_IF_ERROR(graph->UpdateEdge(shape, 0, gradient, slot));
  }
  return absl::OkStatus();
}

class ReadShapesPass : public tensorflow::GraphOptimizationPass {
 public:
  absl::Status Run(const tensorflow::GraphOptimizationPassOptions& options) override {
    if (options.partition_graphs != nullptr) {
      for (auto& [device, graph] : *options.partition_graphs) {
        TF_RETURN_IF_ERROR(RunOn(graph.get()));
      }
    } else if (options.graph != nullptr) {
      return RunOn(options.graph->get());
    }
    return absl::OkStatus();
  }

 private:
  static absl::Status RunOn(Graph* graph) {
    std::vector<Node*> gradients;
    bool is_ours = false;
    for (Node* node : graph->op_nodes()) {
      is_ours = is_ours || node->def().attr().contains(kGraphAttribute);
      if (IsOfOneDnn(*node)) gradients.push_back(node);
    }
    if (!is_ours) return absl::OkStatus();
    for (Node* gradient : gradients) TF_RETURN_IF_ERROR(ReadShapes(gradient, graph));
    return absl::OkStatus();
  }
};

// The layout pass is in group 1.
REGISTER_OPTIMIZATION(tensorflow::OptimizationPassRegistry::POST_PARTITIONING, 2, ReadShapesPass);

}  // namespace
}  // namespace tfswap
