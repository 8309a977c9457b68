#include "grappler/index/op_costs.h"

#include <map>
#include <unordered_map>
#include <unordered_set>

#include "absl/strings/str_cat.h"
#include "grappler/index/graph_description.h"
#include "grappler/index/graph_index.h"
#include "grappler/index/tensor_bytes.h"
#include "grappler/rewrite/order_edges.h"
#include "tensorflow/core/framework/function.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/grappler/clusters/virtual_cluster.h"
#include "tensorflow/core/grappler/costs/graph_properties.h"
#include "tensorflow/core/grappler/costs/op_level_cost_estimator.h"
#include "tensorflow/core/grappler/costs/utils.h"
#include "tensorflow/core/grappler/grappler_item.h"
#include "tensorflow/core/grappler/optimizers/meta_optimizer.h"
#include "tensorflow/core/protobuf/rewriter_config.pb.h"

namespace tfswap {

using ::tensorflow::DeviceProperties;
using ::tensorflow::GraphDef;
using ::tensorflow::NodeDef;
using ::tensorflow::RewriterConfig;
using ::tensorflow::grappler::DeviceInfo;
using ::tensorflow::grappler::GraphProperties;
using ::tensorflow::grappler::GrapplerItem;

namespace {

constexpr char kDevice[] = "/job:localhost/replica:0/task:0/device:CPU:0";

// Map ops to an equivalent that the estimator knows.
const std::string& EstimatorName(const std::string& op) {
  static const auto* names = new std::unordered_map<std::string, std::string>{
      {"BatchMatMulV3", "BatchMatMulV2"},
      {"FusedBatchNormGradV2", "FusedBatchNormGrad"},
      {"FusedBatchNormGradV3", "FusedBatchNormGrad"},
      {"FusedBatchNormV2", "FusedBatchNorm"},
      {"FusedBatchNormV3", "FusedBatchNorm"}};
  auto it = names->find(op);
  return it == names->end() ? op : it->second;
}

class Estimator : public tensorflow::grappler::OpLevelCostEstimator {
 public:
  Estimator(double ops_per_s, double bytes_per_s)
      : info_(ops_per_s * 1e-9, bytes_per_s * 1e-9, INFINITY, INFINITY) {
    compute_memory_overlap_ = true;
  }
  DeviceInfo GetDeviceInfo(const DeviceProperties&) const override { return info_; }

 private:
  DeviceInfo info_;
};

// Layouts and fusions depend on the device, which is not present here.
tensorflow::ConfigProto StepPasses() {
  tensorflow::ConfigProto config;
  RewriterConfig* rewrites = config.mutable_graph_options()->mutable_rewrite_options();
  rewrites->set_layout_optimizer(RewriterConfig::OFF);
  rewrites->set_remapping(RewriterConfig::OFF);
  // Without the size of a device's memory this pass changes nothing, but it copies every constant
  // for each reader: gigabytes where the masks of attention are constants.
  rewrites->set_memory_optimization(RewriterConfig::NO_MEM_OPT);
  rewrites->set_min_graph_nodes(-1);
  return config;
}

absl::StatusOr<GraphDef> Optimized(GraphDef graph, const std::vector<std::string>& kept) {
  GrapplerItem item;
  item.id = "step";
  item.graph = std::move(graph);
  item.fetch = kept;
  item.keep_ops = kept;
  item.optimization_options().allow_pruning_stateful_and_dataset_ops = false;
  DeviceProperties cpu;
  cpu.set_type("CPU");
  cpu.set_num_cores(1);  // the passes need some device; its speed is not used
  cpu.set_frequency(1000);
  tensorflow::grappler::VirtualCluster cluster({{kDevice, cpu}});
  GraphDef optimized;
  absl::Status status = tensorflow::grappler::RunMetaOptimizer(
      std::move(item), StepPasses(), /*cpu_device=*/nullptr, &cluster, &optimized);
  if (!status.ok()) return status;
  return optimized;
}

// Return the lines of `EstimateStep` for a graph that Grappler has optimized already.
absl::StatusOr<std::string> OpCosts(const GraphDef& graph, const GraphIndex& index,
                                    const DeviceSpeed& speed) {
  GrapplerItem item;
  item.graph = graph;
  GraphProperties properties(item);
  absl::Status status = properties.InferStatically(/*assume_valid_feeds=*/true,
                                                   /*aggressive_shape_inference=*/true,
                                                   /*include_tensor_values=*/true);
  if (!status.ok()) return status;
  const Estimator products(speed.product_ops_per_s, speed.bytes_per_s);
  const Estimator others(speed.ops_per_s, speed.bytes_per_s);
  std::unordered_map<std::string, const NodeDef*> nodes;
  for (const NodeDef& node : graph.node()) nodes.emplace(node.name(), &node);
  std::string text;
  for (int n = 0; n < index.size(); ++n) {
    const NodeDef& node = index.node(n);
    const auto& inputs = properties.GetInputProperties(node.name());
    const auto& outputs = properties.GetOutputProperties(node.name());
    // The estimator assumes that all inputs have properties.
    const bool known = inputs.size() == index.inputs(n).size();
    tensorflow::grappler::OpContext op;
    op.name = node.name();
    op.op_info = tensorflow::grappler::BuildOpInfoWithoutDevice(node, nodes, inputs);
    op.op_info.set_op(EstimatorName(node.op()));
    for (const auto& output : outputs) *op.op_info.add_outputs() = output;
    op.op_info.mutable_device()->set_type("GPU");
    const Estimator& estimator = index.IsMilestone(n) ? products : others;
    const int64_t duration_ns = known ? estimator.PredictCosts(op).execution_time.count() : 0;
    absl::StrAppend(&text, node.name(), "\t", duration_ns);
    for (const auto& output : outputs) absl::StrAppend(&text, "\t", TensorBytes(output));
    text += '\n';
  }
  return text;
}

}  // namespace

absl::StatusOr<std::string> EstimateStep(GraphDef graph, const std::vector<std::string>& kept,
                                         const DeviceSpeed& speed) {
  absl::StatusOr<GraphDef> optimized = Optimized(std::move(graph), kept);
  if (!optimized.ok()) return optimized.status();
  const tensorflow::FunctionLibraryDefinition functions(tensorflow::OpRegistry::Global(),
                                                        optimized->library());
  absl::StatusOr<GraphIndex> as_given = GraphIndex::Build(*optimized, functions);
  if (!as_given.ok()) return as_given.status();
  const GraphDef ordered = WithEdges(*as_given, *optimized, LateBroadcasts(*as_given));
  absl::StatusOr<GraphIndex> index = GraphIndex::Build(ordered, functions);
  if (!index.ok()) return index.status();
  absl::StatusOr<std::string> text = OpCosts(ordered, *index, speed);
  if (!text.ok()) return text.status();
  absl::StrAppend(&*text, "\n", Describe(*index));
  for (const auto& [before, after] : Delays(*index)) {
    absl::StrAppend(&*text, "#delay\t", before, "\t", after, "\n");
  }
  for (const auto& [before, after] : PromptUpdates(*index)) {
    absl::StrAppend(&*text, "#keepup\t", before, "\t", after, "\n");
  }
  return text;
}

}  // namespace tfswap
