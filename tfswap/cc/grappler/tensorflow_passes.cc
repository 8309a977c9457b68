#include "grappler/tensorflow_passes.h"

#include <cstdint>
#include <list>
#include <mutex>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/memory/copy.h"
#include "tensorflow/core/grappler/optimizers/meta_optimizer.h"
#include "tensorflow/core/lib/strings/proto_serialization.h"

namespace tfswap {

using ::tensorflow::ConfigProto;
using ::tensorflow::GraphDef;
using ::tensorflow::grappler::Cluster;
using ::tensorflow::grappler::GrapplerItem;

namespace {

constexpr char kOptimized[] = "_tfswap_optimized";
// A training runs few graphs: its step, validation, and those for other shapes.
constexpr size_t kMaxGraphs = 8;
constexpr size_t kMaxBytes = size_t{64} << 20;  // of one graph

using Key = std::pair<size_t, uint64_t>;  // size and checksum of all that the passes read

struct Optimized {
  Key key;
  std::string graph;  // serialized, which takes a third of the memory
};

std::mutex mu;

// The latest first.
std::list<Optimized>& Cache() {
  static auto* cache = new std::list<Optimized>();
  return *cache;
}

Key KeyOf(const GrapplerItem& item, const ConfigProto& config) {
  std::string text, part;
  for (const google::protobuf::MessageLite* message :
       {static_cast<const google::protobuf::MessageLite*>(&item.graph),
        static_cast<const google::protobuf::MessageLite*>(&config)}) {
    tensorflow::SerializeToStringDeterministic(*message, &part);
    absl::StrAppend(&text, part.size(), "\n", part);
  }
  for (const auto* names : {&item.fetch, &item.keep_ops, &item.init_ops}) {
    absl::StrAppend(&text, names->size(), "\n");
    for (const std::string& name : *names) absl::StrAppend(&text, name, "\n");
  }
  const std::set<std::string> devices(item.devices().begin(), item.devices().end());
  for (const std::string& device : devices) absl::StrAppend(&text, device, "\n");
  const GrapplerItem::OptimizationOptions& options = item.optimization_options();
  absl::StrAppend(&text, item.id, "\n", options.allow_non_differentiable_rewrites, " ",
                  options.allow_pruning_stateful_and_dataset_ops, " ",
                  options.optimize_function_library, " ", options.is_eager_mode, " ",
                  options.intra_op_parallelism_threads);
  return {text.size(), Checksum(text.data(), text.size())};
}

bool Find(const Key& key, GraphDef* graph) {
  const std::lock_guard<std::mutex> lock(mu);
  std::list<Optimized>& cache = Cache();
  for (auto it = cache.begin(); it != cache.end(); ++it) {
    if (it->key != key) continue;
    cache.splice(cache.begin(), cache, it);
    return graph->ParseFromString(it->graph);
  }
  return false;
}

void Keep(const Key& key, const GraphDef& graph) {
  if (graph.ByteSizeLong() > kMaxBytes) return;
  Optimized entry{key, graph.SerializeAsString()};
  const std::lock_guard<std::mutex> lock(mu);
  Cache().push_front(std::move(entry));
  if (Cache().size() > kMaxGraphs) Cache().pop_back();
}

}  // namespace

absl::StatusOr<GraphDef> RunTensorFlowPasses(Cluster* cluster, const GrapplerItem& item,
                                             const ConfigProto& config) {
  const Key key = KeyOf(item, config);
  GraphDef graph;
  if (Find(key, &graph)) return graph;
  const absl::Status status = tensorflow::grappler::RunMetaOptimizer(
      GrapplerItem(item), config, /*cpu_device=*/nullptr, cluster, &graph);
  if (!status.ok()) return status;
  for (tensorflow::FunctionDef& function : *graph.mutable_library()->mutable_function()) {
    if (function.node_def_size() == 0) continue;
    (*function.mutable_node_def(0)->mutable_attr())[kOptimized].set_b(true);
  }
  Keep(key, graph);
  return graph;
}

bool IsOptimized(const GraphDef& graph) {
  for (const tensorflow::NodeDef& node : graph.node()) {
    if (node.attr().contains(kOptimized)) return true;
  }
  return false;
}

void ForgetOptimizedGraphs() {
  const std::lock_guard<std::mutex> lock(mu);
  Cache().clear();
}

}  // namespace tfswap
