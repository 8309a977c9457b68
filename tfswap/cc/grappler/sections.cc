#include "grappler/sections.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "grappler/graph_index.h"
#include "grappler/plain_sums.h"
#include "grappler/section_rules.h"
#include "tensorflow/core/framework/function.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/grappler/costs/graph_properties.h"

namespace tfswap {

using ::tensorflow::DataType;
using ::tensorflow::GraphDef;
using ::tensorflow::NodeDef;
using ::tensorflow::Tensor;
using ::tensorflow::grappler::GraphProperties;
using ::tensorflow::grappler::GrapplerItem;

namespace {

std::vector<std::vector<Dims>> ShapesOf(const GraphDef& graph, const GraphProperties& properties) {
  std::vector<std::vector<Dims>> shapes(graph.node_size());
  for (int n = 0; n < graph.node_size(); ++n) {
    for (const auto& output : properties.GetOutputProperties(graph.node(n).name())) {
      Dims dims;
      if (!output.shape().unknown_rank()) {
        dims.emplace();
        for (const auto& dim : output.shape().dim())
          dims->push_back(std::max<int64_t>(dim.size(), -1));
      }
      shapes[n].push_back(std::move(dims));
    }
  }
  return shapes;
}

int64_t Elements(const Dims& dims) {
  if (!dims) return -1;
  int64_t count = 1;
  for (int64_t dim : *dims) {
    if (dim < 0) return -1;
    count *= dim;
  }
  return count;
}

bool IsIterator(const NodeDef& node) { return node.op() == "IteratorGetNext"; }

// Does the op bring data into the graph?
bool BringsData(const NodeDef& node) {
  return IsIterator(node) || node.op() == "_Arg" || node.op() == "Placeholder";
}

class Cutter {
 public:
  Cutter(const GraphDef& graph, const GraphIndex& index, std::vector<std::vector<Dims>> shapes,
         int64_t count)
      : graph_(graph), index_(index), shapes_(std::move(shapes)), count_(count) {}

  Sectioned Cut();

 private:
  // How many examples there are: of what brings data, the largest tensor's.
  void FindBatch();
  void Choose();
  void FindStages();
  void Emit(int n);
  void EmitReader(int n);
  void AddBarriers();

  bool IsCut(int n) const { return separations_[n].has_value(); }
  // Folded ones come behind what they were folded from, and need not.
  bool IsConstant(int n) const { return index_.node(n).op() == "Const"; }
  const Dims& DimsOf(TensorId tensor) const {
    static const auto* unknown = new Dims();
    const auto& outputs = shapes_[tensor.node];
    return tensor.port < static_cast<int>(outputs.size()) ? outputs[tensor.port] : *unknown;
  }
  bool IsBatch(TensorId tensor) const;
  std::optional<std::vector<int64_t>> Constant(TensorId tensor) const;
  OpView View(int n) const;
  bool IsReadByParts(int n) const;
  // Whether it makes more than it reads, if that is all there: then nothing is gained.
  bool MakesMore(int n, const Separation& how) const;

  std::string CopyName(int n, int64_t section) const {
    return absl::StrCat(index_.node(n).name(), "/section_", section);
  }
  // What the names of nodes begin with that are added for a tensor.
  std::string BaseName(TensorId tensor) const {
    return absl::StrCat(index_.node(tensor.node).name(), "/sections_", tensor.port, "/");
  }
  NodeDef* Add(const std::string& name, const std::string& op, int like);
  std::string AddInts(const std::string& name, const std::vector<int64_t>& values, DataType type,
                      bool scalar, int like);
  // Names of inputs: a part of a tensor that is there as a whole; a constant shape's part; a tensor
  // as a whole.
  std::string PartOf(TensorId tensor, int64_t section);
  std::string ShapePartOf(TensorId tensor);
  std::string Whole(TensorId tensor);

  const GraphDef& graph_;
  const GraphIndex& index_;
  const std::vector<std::vector<Dims>> shapes_;
  const int64_t count_;
  int64_t batch_ = 0;
  std::vector<bool> batch_ops_;  // what they make is made from the batch
  std::vector<bool> for_parts_;  // cut only because all that read it are
  std::vector<std::optional<Separation>> separations_;
  std::vector<int> stage_;
  std::vector<int> order_;  // nodes, inputs first
  GraphDef result_;
  std::set<std::string> added_;  // names of nodes of the result
  std::map<std::pair<int, int>, std::string> wholes_;
  // Nodes of the result, by stage and section.
  std::map<std::pair<int, int64_t>, std::vector<int>> members_;
};

bool Cutter::IsBatch(TensorId tensor) const {
  const Dims& dims = DimsOf(tensor);
  if (!batch_ops_[tensor.node] || !dims || dims->empty()) return false;
  if (BringsData(index_.node(tensor.node))) return dims->front() == batch_;
  return dims->front() > 1 && dims->front() % count_ == 0;
}

std::optional<std::vector<int64_t>> Cutter::Constant(TensorId tensor) const {
  const NodeDef& node = index_.node(index_.Root(tensor).node);
  auto value = node.attr().find("value");
  if (node.op() != "Const" || value == node.attr().end()) return std::nullopt;
  Tensor numbers;
  if (!numbers.FromProto(value->second.tensor())) return std::nullopt;
  std::vector<int64_t> found;
  if (numbers.dtype() == tensorflow::DT_INT32) {
    const auto flat = numbers.flat<int32_t>();
    found.assign(flat.data(), flat.data() + flat.size());
  } else if (numbers.dtype() == tensorflow::DT_INT64) {
    const auto flat = numbers.flat<int64_t>();
    found.assign(flat.data(), flat.data() + flat.size());
  } else {
    return std::nullopt;
  }
  return found;
}

OpView Cutter::View(int n) const {
  OpView view{&index_.node(n), {}, {}, {}, nullptr, count_};
  for (const TensorId& input : index_.inputs(n)) {
    view.inputs.push_back(DimsOf(input));
    // A sum over the batch is the same for all examples.
    const bool is_part =
        !IsCut(input.node) || separations_[input.node]->outputs[input.port] == Yield::kPart;
    view.batched.push_back(is_part && IsBatch(input));
  }
  for (int port = 0; port < index_.outputs(n); ++port) view.outputs.push_back(DimsOf({n, port}));
  view.constant = [this, n](int input) -> std::optional<std::vector<int64_t>> {
    const auto& inputs = index_.inputs(n);
    if (input >= static_cast<int>(inputs.size())) return std::nullopt;
    return Constant(inputs[input]);
  };
  return view;
}

bool Cutter::MakesMore(int n, const Separation& how) const {
  int64_t made = 0, read = 0;
  for (size_t port = 0; port < how.outputs.size(); ++port) {
    if (how.outputs[port] == Yield::kPart) return false;
    made += Elements(DimsOf({n, static_cast<int>(port)}));
  }
  const auto& inputs = index_.inputs(n);
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (how.inputs[i] == Share::kPart) read += Elements(DimsOf(inputs[i]));
  }
  return made > read;
}

void Cutter::FindBatch() {
  batch_ops_.assign(index_.size(), false);
  const auto brings = [&](int n, bool iterator) {
    const NodeDef& node = index_.node(n);
    return index_.context(n) == 0 && (iterator ? IsIterator(node) : BringsData(node));
  };
  bool iterator = false;
  for (int n = 0; n < index_.size(); ++n) iterator = iterator || brings(n, true);
  int64_t most = 0;
  for (int n = 0; n < index_.size(); ++n) {
    if (!brings(n, iterator)) continue;
    batch_ops_[n] = true;
    for (const Dims& dims : shapes_[n]) {
      if (!dims || dims->empty() || Elements(dims) <= most) continue;
      most = Elements(dims);
      batch_ = dims->front();
    }
  }
}

void Cutter::Choose() {
  separations_.resize(index_.size());
  for_parts_.assign(index_.size(), false);
  for (int n : order_) {
    if (BringsData(index_.node(n))) continue;
    const OpView view = View(n);
    if (std::find(view.batched.begin(), view.batched.end(), true) == view.batched.end()) continue;
    batch_ops_[n] = true;
    if (index_.context(n) != 0 || !index_.IsManaged(n)) continue;
    std::optional<Separation> how = Separate(view);
    if (how && !MakesMore(n, *how)) separations_[n] = std::move(how);
  }
  // What is as large as the batch and made from less (a broadcast of statistics, say) is made part
  // by part too if nobody reads all of it.
  std::vector<bool> awaited(index_.size(), false);
  for (int n : order_) {
    for (int from : index_.control_inputs(n)) awaited[from] = true;
  }
  for (auto n = order_.rbegin(); n != order_.rend(); ++n) {
    if (IsCut(*n) || awaited[*n] || batch_ops_[*n] || index_.context(*n) != 0 ||
        !index_.IsManaged(*n))
      continue;
    if (!IsReadByParts(*n)) continue;
    std::optional<Separation> how = Separate(View(*n));
    const bool in_parts = how && std::all_of(how->outputs.begin(), how->outputs.end(),
                                             [](Yield yield) { return yield == Yield::kPart; });
    if (!in_parts) continue;
    separations_[*n] = std::move(how);
    for_parts_[*n] = true;
  }
}

bool Cutter::IsReadByParts(int n) const {
  const auto& consumers = index_.consumers(n);
  return !consumers.empty() &&
         std::all_of(consumers.begin(), consumers.end(), [&](const GraphIndex::Consumer& consumer) {
           return IsCut(consumer.node) &&
                  separations_[consumer.node]->inputs[consumer.input] == Share::kPart;
         });
}

void Cutter::FindStages() {
  stage_.assign(index_.size(), 0);
  for (int n : order_) {
    const auto& inputs = index_.inputs(n);
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (IsCut(n) && separations_[n]->inputs[i] == Share::kShape) continue;
      const int from = inputs[i].node;
      const bool by_parts = IsCut(n) && IsCut(from) && separations_[n]->inputs[i] == Share::kPart &&
                            separations_[from]->outputs[inputs[i].port] == Yield::kPart;
      stage_[n] = std::max(stage_[n], stage_[from] + (IsCut(from) && !by_parts ? 1 : 0));
    }
    if (IsConstant(n)) continue;
    for (int from : index_.control_inputs(n)) {
      stage_[n] = std::max(stage_[n], stage_[from] + (IsCut(from) && !IsCut(n) ? 1 : 0));
    }
  }
  // No sooner than where it is read.
  for (auto n = order_.rbegin(); n != order_.rend(); ++n) {
    if (!for_parts_[*n]) continue;
    int first = stage_[index_.consumers(*n).front().node];
    for (const GraphIndex::Consumer& consumer : index_.consumers(*n)) {
      first = std::min(first, stage_[consumer.node]);
    }
    stage_[*n] = std::max(stage_[*n], first);
  }
}

NodeDef* Cutter::Add(const std::string& name, const std::string& op, int like) {
  added_.insert(name);
  NodeDef* node = result_.add_node();
  node->set_name(name);
  node->set_op(op);
  node->set_device(index_.node(like).device());
  return node;
}

std::string Cutter::AddInts(const std::string& name, const std::vector<int64_t>& values,
                            DataType type, bool scalar, int like) {
  if (added_.count(name) > 0) return name;
  const auto size = static_cast<int64_t>(values.size());
  Tensor numbers(type, scalar ? tensorflow::TensorShape() : tensorflow::TensorShape({size}));
  for (int64_t i = 0; i < size; ++i) {
    if (type == tensorflow::DT_INT64) {
      numbers.flat<int64_t>()(i) = values[i];
    } else {
      numbers.flat<int32_t>()(i) = static_cast<int32_t>(values[i]);
    }
  }
  NodeDef* node = Add(name, "Const", like);
  (*node->mutable_attr())["dtype"].set_type(type);
  numbers.AsProtoTensorContent((*node->mutable_attr())["value"].mutable_tensor());
  return name;
}

std::string Cutter::PartOf(TensorId tensor, int64_t section) {
  if (IsCut(tensor.node) && separations_[tensor.node]->outputs[tensor.port] == Yield::kPart) {
    return InputName(CopyName(tensor.node, section), tensor.port);
  }
  const std::string base = BaseName(tensor);
  const std::string name = absl::StrCat(base, section);
  if (added_.count(name) > 0) return name;
  const std::vector<int64_t>& dims = *DimsOf(tensor);
  const int64_t each = dims.front() / count_;
  std::vector<int64_t> begin(dims.size(), 0), size(dims.size(), -1);
  begin[0] = section * each;
  size[0] = each;
  const std::string from = AddInts(absl::StrCat(base, "begin_", section), begin,
                                   tensorflow::DT_INT32, false, tensor.node);
  const std::string extent =
      AddInts(absl::StrCat(base, "size"), size, tensorflow::DT_INT32, false, tensor.node);
  const std::string whole = Whole(tensor);
  NodeDef* node = Add(name, "Slice", tensor.node);
  node->add_input(whole);
  node->add_input(from);
  node->add_input(extent);
  (*node->mutable_attr())["T"].set_type(index_.OutputType(tensor));
  (*node->mutable_attr())["Index"].set_type(tensorflow::DT_INT32);
  return name;
}

std::string Cutter::ShapePartOf(TensorId tensor) {
  const std::string name = absl::StrCat(BaseName(tensor), "shape");
  std::vector<int64_t> shape = *Constant(tensor);
  if (shape[0] != -1) shape[0] /= count_;
  return AddInts(name, shape, index_.OutputType(tensor), false, tensor.node);
}

std::string Cutter::Whole(TensorId tensor) {
  if (!IsCut(tensor.node)) return InputName(index_.node(tensor.node).name(), tensor.port);
  auto [known, is_new] = wholes_.try_emplace({tensor.node, tensor.port});
  if (!is_new) return known->second;
  const std::string base = BaseName(tensor);
  const DataType type = index_.OutputType(tensor);
  const Yield yield = separations_[tensor.node]->outputs[tensor.port];
  const auto copy = [&](int64_t section) {
    return InputName(CopyName(tensor.node, section), tensor.port);
  };
  if (yield == Yield::kPart) {
    const std::string axis =
        AddInts(absl::StrCat(base, "axis"), {0}, tensorflow::DT_INT32, true, tensor.node);
    NodeDef* node = Add(absl::StrCat(base, "whole"), "ConcatV2", tensor.node);
    for (int64_t section = 0; section < count_; ++section) node->add_input(copy(section));
    node->add_input(axis);
    (*node->mutable_attr())["N"].set_i(count_);
    (*node->mutable_attr())["T"].set_type(type);
    (*node->mutable_attr())["Tidx"].set_type(tensorflow::DT_INT32);
    return known->second = node->name();
  }
  std::string sum = copy(0);
  for (int64_t section = 1; section < count_; ++section) {
    NodeDef* node = Add(absl::StrCat(base, "sum_", section), "AddV2", tensor.node);
    node->add_input(sum);
    node->add_input(copy(section));
    (*node->mutable_attr())["T"].set_type(type);
    members_[{stage_[tensor.node], section}].push_back(result_.node_size() - 1);
    sum = node->name();
  }
  if (yield == Yield::kMean) {
    Tensor factor(tensorflow::DT_FLOAT, tensorflow::TensorShape());
    factor.scalar<float>()() = 1.0f / static_cast<float>(count_);
    NodeDef* constant = Add(absl::StrCat(base, "factor"), "Const", tensor.node);
    (*constant->mutable_attr())["dtype"].set_type(tensorflow::DT_FLOAT);
    factor.AsProtoTensorContent((*constant->mutable_attr())["value"].mutable_tensor());
    const std::string by = constant->name();
    NodeDef* node = Add(absl::StrCat(base, "mean"), "Mul", tensor.node);
    node->add_input(sum);
    node->add_input(by);
    (*node->mutable_attr())["T"].set_type(tensorflow::DT_FLOAT);
    sum = node->name();
  }
  return known->second = sum;
}

void Cutter::Emit(int n) {
  const Separation& how = *separations_[n];
  const auto& inputs = index_.inputs(n);
  for (int64_t section = 0; section < count_; ++section) {
    std::vector<std::string> names;
    for (size_t i = 0; i < inputs.size(); ++i) {
      switch (how.inputs[i]) {
        case Share::kWhole:
          names.push_back(Whole(inputs[i]));
          break;
        case Share::kPart:
          names.push_back(PartOf(inputs[i], section));
          break;
        case Share::kShape:
          names.push_back(ShapePartOf(inputs[i]));
          break;
      }
    }
    NodeDef* node = Add(CopyName(n, section), index_.node(n).op(), n);
    *node->mutable_attr() = index_.node(n).attr();
    node->mutable_attr()->erase("_class");
    node->mutable_attr()->erase("_output_shapes");
    for (const std::string& name : names) node->add_input(name);
    for (int from : index_.control_inputs(n)) {
      node->add_input(
          absl::StrCat("^", IsCut(from) ? CopyName(from, section) : index_.node(from).name()));
    }
    members_[{stage_[n], section}].push_back(result_.node_size() - 1);
  }
}

void Cutter::EmitReader(int n) {
  std::vector<std::string> names;
  for (const TensorId& input : index_.inputs(n)) names.push_back(Whole(input));
  for (int from : index_.control_inputs(n)) {
    if (!IsCut(from)) {
      names.push_back(absl::StrCat("^", index_.node(from).name()));
      continue;
    }
    if (IsConstant(n)) continue;
    for (int64_t section = 0; section < count_; ++section) {
      names.push_back(absl::StrCat("^", CopyName(from, section)));
    }
  }
  NodeDef* node = result_.add_node();
  *node = index_.node(n);
  node->clear_input();
  for (const std::string& name : names) node->add_input(name);
}

// In each stage, what begins a section comes behind what ended the one before.
void Cutter::AddBarriers() {
  for (const auto& [key, members] : members_) {
    const auto& [stage, section] = key;
    const auto before = members_.find({stage, section - 1});
    if (before == members_.end()) continue;
    std::set<std::string> read;
    for (int member : before->second) {
      for (const std::string& input : result_.node(member).input()) {
        read.insert(input.substr(0, input.find(':')));
      }
    }
    const std::string name = absl::StrCat("sections/stage_", stage, "/behind_", section - 1);
    NodeDef* barrier = result_.add_node();
    barrier->set_name(name);
    barrier->set_op("NoOp");
    barrier->set_device(result_.node(members.front()).device());
    std::set<std::string> own;
    for (int member : before->second) {
      const std::string& ended = result_.node(member).name();
      if (read.count(ended) == 0) barrier->add_input(absl::StrCat("^", ended));
    }
    for (int member : members) own.insert(result_.node(member).name());
    for (int member : members) {
      NodeDef* node = result_.mutable_node(member);
      const bool begins =
          std::none_of(node->input().begin(), node->input().end(), [&](const std::string& input) {
            const size_t skipped = input[0] == '^' ? 1 : 0;
            return own.count(input.substr(skipped, input.find(':') - skipped)) > 0;
          });
      if (begins) node->add_input(absl::StrCat("^", name));
    }
  }
}

Sectioned Cutter::Cut() {
  order_.resize(index_.size());
  for (int n = 0; n < index_.size(); ++n) order_[n] = n;
  std::sort(order_.begin(), order_.end(),
            [&](int a, int b) { return index_.position(a) < index_.position(b); });
  FindBatch();
  Sectioned done;
  if (batch_ > 1 && batch_ % count_ == 0) Choose();
  for (size_t n = 0; n < separations_.size(); ++n) done.ops += IsCut(static_cast<int>(n));
  if (done.ops == 0) return done;
  FindStages();
  for (int n : order_) {
    if (IsCut(n)) {
      Emit(n);
    } else {
      EmitReader(n);
    }
  }
  AddBarriers();
  *result_.mutable_library() = graph_.library();
  *result_.mutable_versions() = graph_.versions();
  done.graph = std::move(result_);
  return done;
}

}  // namespace

absl::StatusOr<Sectioned> CutIntoSections(const GrapplerItem& given, int64_t count) {
  const GrapplerItem item = given.WithGraph(WithPlainSums(given.graph));
  const tensorflow::FunctionLibraryDefinition functions(tensorflow::OpRegistry::Global(),
                                                        item.graph.library());
  absl::StatusOr<GraphIndex> index = GraphIndex::Build(item.graph, functions);
  if (!index.ok()) return index.status();
  GraphProperties properties(item);
  const absl::Status inferred = properties.InferStatically(/*assume_valid_feeds=*/true);
  if (!inferred.ok()) return inferred;
  return Cutter(item.graph, *index, ShapesOf(item.graph, properties), count).Cut();
}

}  // namespace tfswap
