#include "grappler/index/graph_index.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "grappler/index/accumulation_races.h"
#include "grappler/index/op_kinds.h"
#include "grappler/index/pooling_gradients.h"
#include "tensorflow/core/framework/memory_types.h"
#include "tensorflow/core/framework/node_def_util.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/graph/tensor_id.h"
#include "tensorflow/core/util/device_name_utils.h"
#include "tensorflow/core/util/util.h"

namespace tfswap {

using ::tensorflow::DataType;
using ::tensorflow::FunctionLibraryDefinition;
using ::tensorflow::GraphDef;
using ::tensorflow::NodeDef;

namespace {

// The depth of a loop, whatever its number of iterations.
constexpr int kLoopDepth = 4;  // milestones

}  // namespace

absl::StatusOr<GraphIndex> GraphIndex::Build(const GraphDef& graph,
                                             const FunctionLibraryDefinition& functions) {
  GraphIndex index;
  index.graph_ = &graph;
  if (absl::Status status = index.ReadNodes(functions); !status.ok()) return status;
  absl::StatusOr<LoopFrames> loops = LoopFrames::Find(index);
  if (!loops.ok()) return loops.status();
  index.loops_ = *std::move(loops);
  index.FindDevices();
  index.FindFusions();
  absl::StatusOr<std::vector<int>> order = index.TopologicalOrder();
  if (!order.ok()) return order.status();
  index.MeasureDepth(*order, functions);
  index.contexts_ = AliveContexts(index, index.loops_, *order);
  index.racing_.assign(index.size(), false);
  index.FindRepeatable(functions);
  index.FindOpsInTurn(functions);
  index.racing_ = AccumulationRaces(index);
  index.parts_ = FindForwardBackward(index);
  return index;
}

absl::Status GraphIndex::ReadNodes(const FunctionLibraryDefinition& functions) {
  const int count = graph_->node_size();
  index_.reserve(count);
  for (int n = 0; n < count; ++n) {
    if (!index_.emplace(node(n).name(), n).second) {
      return absl::InvalidArgumentError(absl::StrCat("two nodes are named '", node(n).name(), "'"));
    }
  }
  inputs_.resize(count);
  control_inputs_.resize(count);
  consumers_.resize(count);
  types_.resize(count);
  for (int n = 0; n < count; ++n) {
    for (int i = 0; i < node(n).input_size(); ++i) {
      const tensorflow::TensorId id = tensorflow::ParseTensorName(node(n).input(i));
      const int from = Find(id.node());
      if (from < 0) {
        return absl::InvalidArgumentError(absl::StrCat("input '", node(n).input(i), "' of '",
                                                       node(n).name(), "' is not in the graph"));
      }
      if (id.index() < 0) {
        control_inputs_[n].push_back(from);
      } else {
        inputs_[n].push_back({from, id.index()});
        if (!ReadsShape(n, i)) consumers_[from].push_back({n, i, id.index()});
      }
    }
    const tensorflow::OpDef* op_def = nullptr;
    // An unknown op has no known outputs, so nothing of it is swapped.
    if (functions.LookUpOpDef(node(n).op(), &op_def).ok()) {
      if (!tensorflow::OutputTypesForNode(node(n), *op_def, &types_[n]).ok()) types_[n].clear();
    }
  }
  return absl::OkStatus();
}

int GraphIndex::Find(absl::string_view name) const {
  auto it = index_.find(std::string(name));
  return it == index_.end() ? -1 : it->second;
}

absl::Status GraphIndex::CheckCollectiveGroups(const std::vector<int>& groups) const {
  const absl::Status status = TopologicalOrder(&groups).status();
  if (status.ok()) return status;
  return absl::InvalidArgumentError(
      absl::StrCat("deadlock between collective ops of several devices: ", status.message()));
}

template <typename F>
void GraphIndex::ForEachBefore(int n, const F& visit) const {
  const auto visit_fused = [&](int from) {
    if (IsBackEdge(node(from), node(n))) return;
    visit(from);
    if (twin_[from] >= 0 && twin_[from] != n) visit(twin_[from]);
  };
  for (const TensorId& input : inputs_[n]) visit_fused(input.node);
  for (int input : control_inputs_[n]) visit_fused(input);
  for (int enter : loops_.EntriesOf(n)) visit_fused(enter);
}

absl::StatusOr<std::vector<int>> GraphIndex::TopologicalOrder(
    const std::vector<int>* merged) const {
  std::vector<int> pending(size(), 0);
  std::vector<std::vector<int>> successors(size());
  auto representative = [&](int n) {
    return merged != nullptr && n < static_cast<int>(merged->size()) ? (*merged)[n] : n;
  };
  for (int n = 0; n < size(); ++n) {
    ForEachBefore(n, [&](int from) {
      successors[representative(from)].push_back(representative(n));
      ++pending[representative(n)];
    });
  }
  std::vector<int> order;
  order.reserve(size());
  for (int n = 0; n < size(); ++n) {
    if (pending[n] == 0) order.push_back(n);
  }
  for (size_t done = 0; done < order.size(); ++done) {
    for (int next : successors[order[done]]) {
      if (--pending[next] == 0) order.push_back(next);
    }
  }
  if (static_cast<int>(order.size()) != size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the graph has a cycle through ", CycleIn(successors, pending)));
  }
  return order;
}

std::string GraphIndex::CycleIn(const std::vector<std::vector<int>>& successors,
                                const std::vector<int>& pending) const {
  // The remaining nodes lie on a cycle or after one, so walking backwards ends in a cycle.
  std::vector<int> before(size(), -1);
  int at = -1;
  for (int n = 0; n < size(); ++n) {
    if (pending[n] <= 0) continue;
    at = n;
    for (int next : successors[n]) before[next] = n;
  }
  std::vector<bool> seen(size(), false);
  while (!seen[at]) {
    seen[at] = true;
    at = before[at];
  }
  constexpr int kMaxNamed = 6;
  std::vector<std::string> names;
  int length = 0;
  for (int n = before[at];; n = before[n]) {
    if (++length <= kMaxNamed) names.push_back(absl::StrCat("'", node(n).name(), "'"));
    if (n == at) break;
  }
  std::reverse(names.begin(), names.end());
  const int more = length - static_cast<int>(names.size());
  return absl::StrCat(more > 0 ? absl::StrCat(more, " ops and ") : "",
                      absl::StrJoin(names, " -> "));
}

bool GraphIndex::IsComputedFromVariables(int n, const FunctionLibraryDefinition& functions) const {
  if (inputs_[n].empty()) return false;
  if (node(n).op() == "ReadVariableOp") return true;
  const auto constant = [&](TensorId input) { return node(input.node).op() == "Const"; };
  const auto of_variables = [&](TensorId input) { return of_variables_[input.node]; };
  const tensorflow::OpDef* op_def = nullptr;
  return std::any_of(inputs_[n].begin(), inputs_[n].end(), of_variables) &&
         std::all_of(inputs_[n].begin(), inputs_[n].end(),
                     [&](TensorId input) { return constant(input) || of_variables(input); }) &&
         functions.LookUpOpDef(node(n).op(), &op_def).ok() && !op_def->is_stateful();
}

void GraphIndex::MeasureDepth(const std::vector<int>& order,
                              const FunctionLibraryDefinition& functions) {
  of_variables_.assign(size(), false);
  depth_.assign(size(), 0);
  level_.assign(size(), 0);
  critical_.assign(size(), -1);
  for (int n : order) {
    ForEachBefore(n, [&](int from) {
      const int best = critical_[n];
      if (best < 0 ||
          std::make_pair(depth_[from], level_[from]) > std::make_pair(depth_[best], level_[best])) {
        critical_[n] = from;
      }
    });
    const int before = critical_[n] < 0 ? 0 : depth_[critical_[n]];
    of_variables_[n] = before == 0 && IsComputedFromVariables(n, functions);
    const bool counts = IsMilestone(n) && !of_variables_[n];
    depth_[n] = before + (counts ? 1 : IsExit(node(n)) ? kLoopDepth : 0);
    level_[n] = critical_[n] < 0 ? 0 : level_[critical_[n]] + 1;
  }
  order_ = order;
  std::stable_sort(order_.begin(), order_.end(),
                   [this](int a, int b) { return depth_[a] < depth_[b]; });
  position_.assign(size(), 0);
  for (int i = 0; i < size(); ++i) position_[order_[i]] = i;
}

int GraphIndex::MilestoneBefore(int n, int count) const {
  for (int at = critical_[n]; at >= 0; at = critical_[at]) {
    if (IsMilestone(at) && --count == 0) return at;
  }
  return -1;
}

int GraphIndex::TriggerBefore(int n, int count, int above_depth) const {
  int trigger = -1;
  for (int at = critical_[n]; at >= 0 && depth_[at] > above_depth; at = critical_[at]) {
    if (AliveWith(at, n) && IsRewirable(at) && IsManaged(at)) trigger = at;
    const bool is_far_enough = IsMilestone(at) && --count <= 0;
    if ((is_far_enough || Unfolding().count(node(at).op()) > 0) && trigger >= 0) break;
  }
  return trigger;
}

int GraphIndex::NearTriggerBefore(int n, int above) const {
  int trigger = -1;
  for (int at = critical_[n]; at >= 0 && position_[at] > above; at = critical_[at]) {
    if (!IsGateable(at) || !AliveWith(at, n)) continue;
    if (trigger >= 0) return trigger;
    trigger = at;
  }
  return -1;
}

bool GraphIndex::IsOnGpu(int n) const {
  tensorflow::DeviceNameUtils::ParsedName device;
  return (tensorflow::DeviceNameUtils::ParseFullName(node(n).device(), &device) ||
          tensorflow::DeviceNameUtils::ParseLocalName(node(n).device(), &device)) &&
         device.has_type && device.type == tensorflow::DEVICE_GPU;
}

void GraphIndex::FindDevices() {
  managed_.resize(size());
  for (int n = 0; n < size(); ++n) managed_[n] = IsOnGpu(n);
  in_host_memory_.resize(size());
  manages_gpu_ = std::count(managed_.begin(), managed_.end(), true) > 0;
  if (!manages_gpu_) {
    managed_.assign(size(), true);
    return;
  }
  for (int n = 0; n < size(); ++n) {
    if (!managed_[n]) continue;
    tensorflow::MemoryTypeVector inputs, outputs;
    in_host_memory_[n].assign(types_[n].size(), true);
    if (!tensorflow::MemoryTypesForNode(tensorflow::OpRegistry::Global(), tensorflow::DEVICE_GPU,
                                        node(n), &inputs, &outputs)
             .ok()) {
      continue;
    }
    for (size_t port = 0; port < outputs.size() && port < types_[n].size(); ++port) {
      in_host_memory_[n][port] = outputs[port] == tensorflow::HOST_MEMORY;
    }
  }
}

bool GraphIndex::InDeviceMemory(TensorId tensor) const {
  const std::vector<bool>& in_host_memory = in_host_memory_[tensor.node];
  return managed_[tensor.node] &&
         (tensor.port >= static_cast<int>(in_host_memory.size()) || !in_host_memory[tensor.port]);
}

void GraphIndex::FindFusions() {
  constexpr int kOutBackprop = 2;  // of a convolution's weight gradient
  twin_.assign(size(), -1);
  may_fuse_.assign(size(), false);
  // Without oneDNN no pass comes later.
  const bool fuses = tensorflow::IsMKLEnabled();
  const auto fusible = [&](int n) { return fuses && (!manages_gpu_ || !managed_[n]); };
  for (int n = 0; n < size(); ++n) {
    if (!fusible(n) || node(n).op() != "BiasAddGrad" || inputs_[n].empty()) continue;
    const TensorId gradient = inputs_[n][0];
    for (const Consumer& consumer : consumers_[gradient.node]) {
      const std::string& op = node(consumer.node).op();
      if (consumer.port != gradient.port || consumer.input != kOutBackprop ||
          twin_[consumer.node] >= 0 ||
          (op != "Conv2DBackpropFilter" && op != "Conv3DBackpropFilterV2")) {
        continue;
      }
      twin_[n] = consumer.node;
      twin_[consumer.node] = n;
      break;
    }
  }
  for (int n = 0; n < size(); ++n) {
    may_fuse_[n] = TakeNoTime().count(node(n).op()) > 0;
    if (!fusible(n) || may_fuse_[n]) continue;
    may_fuse_[n] = twin_[n] >= 0 || MayBeFused().count(node(n).op()) > 0;
    if (may_fuse_[n] || !IsMilestone(n) || !absl::StrContains(node(n).op(), "onv")) continue;
    // A convolution is fused with paddings and transposes.
    for (const TensorId& input : inputs_[n]) {
      const std::string& op = node(input.node).op();
      if (op == "Pad" || op == "PadV2" || op == "Transpose") may_fuse_[n] = true;
    }
    for (const Consumer& consumer : consumers_[n]) {
      if (node(consumer.node).op() == "Transpose") may_fuse_[n] = true;
    }
  }
}

void GraphIndex::FindRepeatable(const FunctionLibraryDefinition& functions) {
  repeatable_.assign(size(), false);
  for (int n = 0; n < size(); ++n) {
    const tensorflow::OpDef* op_def = nullptr;
    repeatable_[n] = IsManaged(n) && !MayFuse(n) && !HasWorkspace(n) &&
                     ExternallyOwned().count(node(n).op()) == 0 && IsRewirable(n) &&
                     functions.LookUpOpDef(node(n).op(), &op_def).ok() && !op_def->is_stateful() &&
                     !functions.Contains(node(n).op()) && !inputs_[n].empty();
    // oneDNN fuses the input only if it has no other reader.
    for (const TensorId& input : inputs_[n]) {
      const bool is_only_reader = consumers_[input.node].size() == 1;
      if (is_only_reader && !IsAlias(input.node) && MayFuse(input.node) &&
          ExternallyOwned().count(node(input.node).op()) == 0) {
        repeatable_[n] = false;
      }
    }
  }
}

void GraphIndex::FindOpsInTurn(const FunctionLibraryDefinition& functions) {
  in_turn_.assign(size(), false);
  for (int n = 0; n < size(); ++n) {
    const tensorflow::OpDef* op_def = nullptr;
    // Other stateful ops may wait for each other, such as those of a queue.
    const bool is_pure =
        functions.LookUpOpDef(node(n).op(), &op_def).ok() && !op_def->is_stateful();
    in_turn_[n] = manages_gpu_ ? IsGateable(n)
                               : IsOrderable(n) && !IsAlias(n) && !inputs_[n].empty() &&
                                     (is_pure || IsUpdate(n));
  }
}

DataType GraphIndex::OutputType(TensorId tensor) const {
  const auto& types = types_[tensor.node];
  const bool is_there = tensor.port >= 0 && tensor.port < static_cast<int>(types.size());
  return is_there ? types[tensor.port] : tensorflow::DT_INVALID;
}

GraphIndex GraphIndex::WithoutRaces() const {
  GraphIndex settled = *this;
  settled.racing_.assign(size(), false);
  return settled;
}

void GraphIndex::AddRacesOf(const GraphIndex& other) {
  for (int n = 0; n < size(); ++n) racing_[n] = racing_[n] || other.racing_[n];
}

bool GraphIndex::IsMilestone(int n) const { return Milestones().count(node(n).op()) > 0; }

bool GraphIndex::IsGateable(int n) const {
  return IsManaged(n) && !IsRacing(n) && !MayFuse(n) &&
         (IsMilestone(n) || OtherGateable().count(node(n).op()) > 0);
}

bool GraphIndex::IsUpdate(int n) const {
  const std::string& op = node(n).op();
  return absl::StartsWith(op, "ResourceApply") ||
         (absl::StartsWith(op, "Assign") && absl::EndsWith(op, "VariableOp"));
}

bool GraphIndex::IsActivation(TensorId tensor) const {
  if (OutputType(tensor) != tensorflow::DT_FLOAT || !parts_.forward[tensor.node]) return false;
  // The other outputs of batch norm are statistics that are assigned to variables.
  if (tensor.port > 0 && absl::StrContains(node(tensor.node).op(), "BatchNorm")) return false;
  std::vector<TensorId> reached = {tensor};
  for (size_t i = 0; i < reached.size(); ++i) {
    for (const Consumer& consumer : consumers_[reached[i].node]) {
      if (consumer.port != reached[i].port) continue;
      if (IsUpdate(consumer.node)) return false;
      if (consumer.input == 0 && IsAlias(consumer.node)) reached.push_back({consumer.node, 0});
    }
  }
  return true;
}

bool GraphIndex::IsOrderable(int n) const {
  return IsManaged(n) && !IsRacing(n) && !MayFuse(n) && IsRewirable(n);
}

bool GraphIndex::MayWait(int n) const { return !IsRacing(n) && (!MayFuse(n) || of_variables_[n]); }

std::string InputName(const std::string& node, int port) {
  return port == 0 ? node : absl::StrCat(node, ":", port);
}

bool GraphIndex::IsAlias(int n) const { return Aliases().count(node(n).op()) > 0; }

bool GraphIndex::IsSwappableProducer(int n) const {
  return IsManaged(n) && ExternallyOwned().count(node(n).op()) == 0 && !IsRacing(n) &&
         !HasWorkspace(n);
}

bool GraphIndex::HasWorkspace(int n) const {
  // By op: its gradient, and the input of the gradient that is the op's output.
  static const auto* gradients =
      new std::map<std::string, std::pair<std::string, int>>{{"LRN", {"LRNGrad", 2}},
                                                             {"MaxPool", {"MaxPoolGrad", 1}},
                                                             {"MaxPool3D", {"MaxPool3DGrad", 1}}};
  const auto gradient = gradients->find(node(n).op());
  if (gradient == gradients->end() || ManagesGpu() || !tensorflow::IsMKLEnabled()) return false;
  return std::any_of(consumers_[n].begin(), consumers_[n].end(), [&](const Consumer& consumer) {
    return node(consumer.node).op() == gradient->second.first &&
           consumer.input == gradient->second.second;
  });
}

bool GraphIndex::ReadsShape(int n, int input) const {
  if (!absl::StartsWith(node(n).op(), "MaxPool") || node(n).input_size() < 2) return false;
  const int pooling = Find(tensorflow::ParseTensorName(node(n).input(1)).node());
  return pooling >= 0 && !IsOnGpu(n) && WillReadShape(node(n), input, node(pooling));
}

bool GraphIndex::IsRewirable(int n) const { return NotRewirable().count(node(n).op()) == 0; }

bool GraphIndex::Reads(int n, TensorId root) const {
  return std::any_of(inputs_[n].begin(), inputs_[n].end(),
                     [&](const TensorId& input) { return input == root || Root(input) == root; });
}

TensorId GraphIndex::Root(TensorId tensor) const {
  while (tensor.port == 0 && IsAlias(tensor.node) && !inputs_[tensor.node].empty()) {
    tensor = inputs_[tensor.node][0];
  }
  return tensor;
}

}  // namespace tfswap
