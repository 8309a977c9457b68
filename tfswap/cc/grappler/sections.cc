#include "grappler/sections.h"

#include <algorithm>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "grappler/batch_rules.h"
#include "grappler/graph_index.h"
#include "grappler/plain_sums.h"
#include "grappler/row_rules.h"
#include "grappler/section_emitter.h"
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

constexpr int kImageRank = 4;
// Of a section of an image: fewer are mostly rows that two sections read.
constexpr int64_t kLeastRows = 4;

class Cutter {
 public:
  Cutter(const GraphDef& graph, const GraphIndex& index, std::vector<std::vector<Dims>> shapes,
         int64_t count)
      : graph_(graph), index_(index), shapes_(std::move(shapes)) {
    plan_.count = count;
  }

  Sectioned Cut();

 private:
  // How many examples there are, and how large: of what brings data, the largest tensor's.
  void FindBatch();
  void Choose();
  void FindStages();
  void PutOff(int n);

  bool IsCut(int n) const { return plan_.IsCut(n); }
  // Folded ones come behind what they were folded from, and need not.
  bool IsConstant(int n) const { return index_.node(n).op() == "Const"; }
  const Dims& DimsOf(TensorId tensor) const {
    static const auto* unknown = new Dims();
    const auto& outputs = shapes_[tensor.node];
    return tensor.port < static_cast<int>(outputs.size()) ? outputs[tensor.port] : *unknown;
  }
  // Where a tensor is cut, or would be, if it is made from the batch.
  std::optional<tfswap::Cut> CutOf(TensorId tensor) const;
  std::optional<tfswap::Cut> CutOfWhole(TensorId tensor) const;
  std::optional<std::vector<int64_t>> Constant(TensorId tensor) const;
  OpView View(int n) const;
  std::optional<Separation> Separate(int n, const std::optional<tfswap::Cut>& wanted) const;
  // How all that read the op's output cut it; no value if somebody reads it as a whole.
  std::optional<tfswap::Cut> Wanted(int n) const;
  // Whether it makes more than it reads, if that is all there: then nothing is gained.
  bool MakesMore(int n, const Separation& how) const;
  // By how many sections an op must come behind one whose parts it reads.
  int64_t Reach(const InputPart& part, const tfswap::Cut& cut) const;

  const GraphDef& graph_;
  const GraphIndex& index_;
  const std::vector<std::vector<Dims>> shapes_;
  SectionPlan plan_;
  bool by_rows_ = false;
  int64_t batch_ = 0, rows_ = 0, columns_ = 0;
  std::vector<bool> batch_ops_;               // what they make is made from the batch
  std::vector<bool> for_parts_;               // cut only because all that read it are
  std::vector<std::vector<int>> awaited_by_;  // who has a control edge from it
};

std::optional<tfswap::Cut> Cutter::CutOfWhole(TensorId tensor) const {
  const Dims& dims = DimsOf(tensor);
  if (!dims || dims->empty()) return std::nullopt;
  if (!by_rows_) {
    const bool of_batch = BringsData(index_.node(tensor.node))
                              ? dims->front() == batch_
                              : dims->front() > 1 && dims->front() % plan_.count == 0;
    if (!of_batch) return std::nullopt;
    return EvenCut(0, dims->front(), plan_.count);
  }
  if (dims->size() >= 3 && (*dims)[1] >= kLeastRows * plan_.count) {
    return EvenCut(1, (*dims)[1], plan_.count);
  }
  // What images become where each pixel has an output of its own.
  if (dims->size() <= 2 && batch_ == 1 && dims->front() == rows_ * columns_) {
    auto cut = EvenCut(0, rows_, plan_.count);
    for (int64_t& bound : cut.bounds) bound *= columns_;
    return cut;
  }
  return std::nullopt;
}

std::optional<tfswap::Cut> Cutter::CutOf(TensorId tensor) const {
  if (IsCut(tensor.node)) {
    const OutputPart& part = plan_.separations[tensor.node]->outputs[tensor.port];
    // A sum over the batch is the same for all examples.
    if (part.yield != Yield::kPart) return std::nullopt;
    return part.cut;
  }
  return batch_ops_[tensor.node] ? CutOfWhole(tensor) : std::nullopt;
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
  OpView view{&index_.node(n), {}, {}, {}, nullptr, plan_.count};
  for (const TensorId& input : index_.inputs(n)) {
    view.inputs.push_back(DimsOf(input));
    view.cuts.push_back(CutOf(input));
  }
  for (int port = 0; port < index_.outputs(n); ++port) view.outputs.push_back(DimsOf({n, port}));
  view.constant = [this, n](int input) -> std::optional<std::vector<int64_t>> {
    const auto& inputs = index_.inputs(n);
    if (input >= static_cast<int>(inputs.size())) return std::nullopt;
    return Constant(inputs[input]);
  };
  return view;
}

std::optional<Separation> Cutter::Separate(int n, const std::optional<tfswap::Cut>& wanted) const {
  const OpView view = View(n);
  std::optional<Separation> found = by_rows_ ? SeparateByRows(view, wanted) : SeparateByBatch(view);
  if (!found) return std::nullopt;
  // Whatever is made from the batch must be cut: all of it is never there.
  for (size_t i = 0; i < view.inputs.size(); ++i) {
    if (view.IsBatched(static_cast<int>(i)) && found->inputs[i].share == Share::kWhole) {
      return std::nullopt;
    }
  }
  return found;
}

bool Cutter::MakesMore(int n, const Separation& how) const {
  int64_t made = 0, read = 0;
  for (size_t port = 0; port < how.outputs.size(); ++port) {
    if (how.outputs[port].yield == Yield::kPart) return false;
    made += Elements(DimsOf({n, static_cast<int>(port)}));
  }
  const auto& inputs = index_.inputs(n);
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (how.inputs[i].share == Share::kPart) read += Elements(DimsOf(inputs[i]));
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
      const bool images = dims->size() == kImageRank;
      rows_ = images ? (*dims)[1] : 0;
      columns_ = images ? (*dims)[2] : 0;
    }
  }
}

void Cutter::Choose() {
  plan_.separations.resize(index_.size());
  for_parts_.assign(index_.size(), false);
  for (int n : plan_.order) {
    if (BringsData(index_.node(n))) continue;
    const auto& inputs = index_.inputs(n);
    if (std::none_of(inputs.begin(), inputs.end(),
                     [&](TensorId input) { return CutOf(input).has_value(); })) {
      continue;
    }
    batch_ops_[n] = true;
    if (index_.context(n) != 0 || !index_.IsManaged(n)) continue;
    std::optional<Separation> how = Separate(n, std::nullopt);
    if (how && !MakesMore(n, *how)) plan_.separations[n] = std::move(how);
  }
  // What is as large as the batch and made from less (a broadcast of statistics, say) is made part
  // by part too if nobody reads all of it.
  awaited_by_.resize(index_.size());
  for (int n : plan_.order) {
    if (IsConstant(n)) continue;
    for (int from : index_.control_inputs(n)) awaited_by_[from].push_back(n);
  }
  for (auto n = plan_.order.rbegin(); n != plan_.order.rend(); ++n) {
    if (IsCut(*n) || batch_ops_[*n] || index_.context(*n) != 0 || !index_.IsManaged(*n)) continue;
    const std::optional<tfswap::Cut> wanted = Wanted(*n);
    if (!wanted) continue;
    std::optional<Separation> how = Separate(*n, wanted);
    const bool in_parts =
        how && std::all_of(how->outputs.begin(), how->outputs.end(),
                           [](const OutputPart& part) { return part.yield == Yield::kPart; });
    if (!in_parts) continue;
    plan_.separations[*n] = std::move(how);
    for_parts_[*n] = true;
  }
}

std::optional<tfswap::Cut> Cutter::Wanted(int n) const {
  const auto& consumers = index_.consumers(n);
  if (consumers.empty()) return std::nullopt;
  for (int reader : awaited_by_[n]) {
    if (!IsCut(reader)) return std::nullopt;
  }
  std::optional<tfswap::Cut> wanted;
  for (const GraphIndex::Consumer& consumer : consumers) {
    if (!IsCut(consumer.node)) return std::nullopt;
    const InputPart& part = plan_.separations[consumer.node]->inputs[consumer.input];
    if (part.share != Share::kPart) return std::nullopt;
    tfswap::Cut own{part.axis, {part.pieces.front().begin}};
    for (const Piece& piece : part.pieces) {
      if (piece.begin != own.bounds.back()) return std::nullopt;
      own.bounds.push_back(piece.end);
    }
    if (wanted && !(*wanted == own)) return std::nullopt;
    wanted = std::move(own);
  }
  return wanted;
}

int64_t Cutter::Reach(const InputPart& part, const tfswap::Cut& cut) const {
  int64_t reach = 0;
  for (int64_t s = 0; s < plan_.count; ++s) {
    int64_t last = s;
    while (last + 1 < plan_.count && cut.bounds[last + 1] < part.pieces[s].end) ++last;
    reach = std::max(reach, last - s);
  }
  return reach;
}

void Cutter::FindStages() {
  std::vector<int>& stage = plan_.stage;
  std::vector<int64_t>& delay = plan_.delay;
  stage.assign(index_.size(), 0);
  delay.assign(index_.size(), 0);
  for (int n : plan_.order) {
    // Behind what it reads: in a later stage or, by parts, some sections later.
    const auto come_behind = [&](int from, bool by_parts, int64_t reach) {
      const int earliest = stage[from] + (IsCut(from) && !by_parts ? 1 : 0);
      if (earliest > stage[n]) {
        stage[n] = earliest;
        delay[n] = 0;
      }
      if (earliest == stage[n] && IsCut(n) && by_parts) {
        delay[n] = std::max(delay[n], delay[from] + reach);
      }
    };
    const auto& inputs = index_.inputs(n);
    for (size_t i = 0; i < inputs.size(); ++i) {
      const InputPart* part = IsCut(n) ? &plan_.separations[n]->inputs[i] : nullptr;
      if (part != nullptr && part->share == Share::kInts) continue;
      const int from = inputs[i].node;
      const OutputPart* made =
          IsCut(from) ? &plan_.separations[from]->outputs[inputs[i].port] : nullptr;
      const bool by_parts = part != nullptr && part->share == Share::kPart && made != nullptr &&
                            made->yield == Yield::kPart && made->cut.axis == part->axis;
      come_behind(from, by_parts, by_parts ? Reach(*part, made->cut) : 0);
    }
    if (IsConstant(n)) continue;
    for (int from : index_.control_inputs(n)) come_behind(from, IsCut(n) && IsCut(from), 0);
  }
  for (auto n = plan_.order.rbegin(); n != plan_.order.rend(); ++n) {
    if (for_parts_[*n]) PutOff(*n);
  }
}

// No sooner than where it is read.
void Cutter::PutOff(int n) {
  std::optional<std::pair<int, int64_t>> first;
  const auto read_by = [&](int reader) {
    const std::pair<int, int64_t> turn = {plan_.stage[reader], plan_.delay[reader]};
    if (!first || turn < *first) first = turn;
  };
  for (const GraphIndex::Consumer& consumer : index_.consumers(n)) read_by(consumer.node);
  for (int reader : awaited_by_[n]) read_by(reader);
  if (*first > std::make_pair(plan_.stage[n], plan_.delay[n])) {
    std::tie(plan_.stage[n], plan_.delay[n]) = *first;
  }
}

Sectioned Cutter::Cut() {
  plan_.order.resize(index_.size());
  for (int n = 0; n < index_.size(); ++n) plan_.order[n] = n;
  std::sort(plan_.order.begin(), plan_.order.end(),
            [&](int a, int b) { return index_.position(a) < index_.position(b); });
  FindBatch();
  by_rows_ = batch_ % plan_.count != 0;
  Sectioned done;
  if (by_rows_ ? rows_ >= kLeastRows * plan_.count : batch_ > 1) Choose();
  for (size_t n = 0; n < plan_.separations.size(); ++n) done.ops += IsCut(static_cast<int>(n));
  if (done.ops == 0) return done;
  FindStages();
  done.graph = SectionEmitter(index_, shapes_, plan_).Emit();
  *done.graph.mutable_library() = graph_.library();
  *done.graph.mutable_versions() = graph_.versions();
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
