#include "grappler/sections/section_plan.h"

#include <algorithm>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "grappler/index/graph_index.h"
#include "grappler/rules/batch_rules.h"
#include "grappler/rules/row_rules.h"
#include "tensorflow/core/framework/tensor.h"

namespace tfswap {

using ::tensorflow::NodeDef;
using ::tensorflow::Tensor;

namespace {

// Fewer rows per section would mostly be rows that two sections read.
constexpr int64_t kMinRows = 4;

class SectionPlanner {
 public:
  SectionPlanner(const InferredGraph& graph, int64_t count) : graph_(graph), index_(graph.index()) {
    plan_.count = count;
  }

  SectionPlan Plan();

 private:
  void Choose();
  void FindStages();
  void Postpone(int n);

  bool IsCut(int n) const { return plan_.split_rules[n].has_value(); }
  // A folded constant need not wait for the ops it was folded from.
  bool IsConstant(int n) const { return index_.node(n).op() == "Const"; }
  const Dims& DimsOf(TensorId tensor) const { return graph_.DimsOf(tensor); }
  // Return the cut of a tensor: the actual one, or the one to use if it depends on the batch.
  std::optional<tfswap::Cut> CutOf(TensorId tensor) const;
  std::optional<tfswap::Cut> CutOfWhole(TensorId tensor) const;
  std::optional<std::vector<int64_t>> Constant(TensorId tensor) const;
  OpView View(int n) const;
  std::optional<SplitRule> FindRule(int n, const std::optional<tfswap::Cut>& requested) const;
  // Return the cut that all readers of the op's output use; none if one reads it as a whole.
  std::optional<tfswap::Cut> ReadersCut(int n) const;
  // Return whether a reduced output is larger than the inputs, so that splitting gains nothing.
  bool OutputExceedsInput(int n, const SplitRule& how) const;
  // Return by how many sections an op must run after the producer of the parts that it reads.
  int64_t Reach(const InputPart& part, const tfswap::Cut& cut) const;

  const InferredGraph& graph_;
  const GraphIndex& index_;
  SectionPlan plan_;
  bool by_rows_ = false;
  std::vector<bool> batch_ops_;                       // ops that depend on the batch
  std::vector<bool> cut_for_readers_;                 // split only because all readers are
  std::vector<std::vector<int>> control_successors_;  // nodes with a control edge from it
};

std::optional<tfswap::Cut> SectionPlanner::CutOfWhole(TensorId tensor) const {
  const Dims& dims = DimsOf(tensor);
  if (!dims || dims->empty()) return std::nullopt;
  if (!by_rows_) {
    const bool of_batch = graph_.IsBatchSource(tensor.node)
                              ? dims->front() == graph_.batch().examples
                              : dims->front() > 1 && dims->front() % plan_.count == 0;
    if (!of_batch) return std::nullopt;
    return EvenCut(0, dims->front(), plan_.count);
  }
  if (dims->size() >= 3 && (*dims)[1] >= kMinRows * plan_.count) {
    return EvenCut(1, (*dims)[1], plan_.count);
  }
  // Flattened images of which each pixel has an output.
  const BatchShape& batch = graph_.batch();
  if (dims->size() <= 2 && batch.examples == 1 && dims->front() == batch.rows * batch.columns) {
    auto cut = EvenCut(0, batch.rows, plan_.count);
    for (int64_t& bound : cut.bounds) bound *= batch.columns;
    return cut;
  }
  return std::nullopt;
}

std::optional<tfswap::Cut> SectionPlanner::CutOf(TensorId tensor) const {
  if (IsCut(tensor.node)) {
    const OutputPart& part = plan_.split_rules[tensor.node]->outputs[tensor.port];
    if (part.kind != OutputKind::kPart) return std::nullopt;
    return part.cut;
  }
  return batch_ops_[tensor.node] ? CutOfWhole(tensor) : std::nullopt;
}

std::optional<std::vector<int64_t>> SectionPlanner::Constant(TensorId tensor) const {
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

OpView SectionPlanner::View(int n) const {
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

std::optional<SplitRule> SectionPlanner::FindRule(
    int n, const std::optional<tfswap::Cut>& requested) const {
  const OpView view = View(n);
  std::optional<SplitRule> found = by_rows_ ? SplitByRows(view, requested) : SplitByBatch(view);
  if (!found) return std::nullopt;
  // An input that depends on the batch must be split: it never exists as a whole.
  for (size_t i = 0; i < view.inputs.size(); ++i) {
    if (view.IsBatched(static_cast<int>(i)) && found->inputs[i].kind == InputKind::kWhole) {
      return std::nullopt;
    }
  }
  return found;
}

bool SectionPlanner::OutputExceedsInput(int n, const SplitRule& how) const {
  int64_t made = 0, read = 0;
  for (size_t port = 0; port < how.outputs.size(); ++port) {
    if (how.outputs[port].kind == OutputKind::kPart) return false;
    made += Elements(DimsOf({n, static_cast<int>(port)}));
  }
  const auto& inputs = index_.inputs(n);
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (how.inputs[i].kind == InputKind::kPart) read += Elements(DimsOf(inputs[i]));
  }
  return made > read;
}

void SectionPlanner::Choose() {
  for (int n = 0; n < index_.size(); ++n) batch_ops_.push_back(graph_.IsBatchSource(n));
  cut_for_readers_.assign(index_.size(), false);
  for (int n : plan_.order) {
    if (graph_.IsBatchSource(n)) continue;
    const auto& inputs = index_.inputs(n);
    if (std::none_of(inputs.begin(), inputs.end(),
                     [&](TensorId input) { return CutOf(input).has_value(); })) {
      continue;
    }
    batch_ops_[n] = true;
    if (index_.context(n) != 0 || !index_.IsManaged(n)) continue;
    std::optional<SplitRule> how = FindRule(n, std::nullopt);
    if (how && OutputExceedsInput(n, *how)) {
      // A large sum over the batch stays whole; its readers work on weights.
      batch_ops_[n] = false;
    } else if (how) {
      plan_.split_rules[n] = std::move(how);
    }
  }
  // An output as large as the batch that is computed from less (a broadcast of statistics) is split
  // as well if no op reads all of it.
  control_successors_.resize(index_.size());
  for (int n : plan_.order) {
    if (IsConstant(n)) continue;
    for (int from : index_.control_inputs(n)) control_successors_[from].push_back(n);
  }
  for (auto n = plan_.order.rbegin(); n != plan_.order.rend(); ++n) {
    if (IsCut(*n) || batch_ops_[*n] || index_.context(*n) != 0 || !index_.IsManaged(*n)) continue;
    const std::optional<tfswap::Cut> requested = ReadersCut(*n);
    if (!requested) continue;
    std::optional<SplitRule> how = FindRule(*n, requested);
    const bool in_parts =
        how && std::all_of(how->outputs.begin(), how->outputs.end(),
                           [](const OutputPart& part) { return part.kind == OutputKind::kPart; });
    if (!in_parts) continue;
    plan_.split_rules[*n] = std::move(how);
    cut_for_readers_[*n] = true;
  }
}

std::optional<tfswap::Cut> SectionPlanner::ReadersCut(int n) const {
  const auto& consumers = index_.consumers(n);
  if (consumers.empty()) return std::nullopt;
  for (int reader : control_successors_[n]) {
    if (!IsCut(reader)) return std::nullopt;
  }
  std::optional<tfswap::Cut> requested;
  for (const GraphIndex::Consumer& consumer : consumers) {
    if (!IsCut(consumer.node)) return std::nullopt;
    const InputPart& part = plan_.split_rules[consumer.node]->inputs[consumer.input];
    if (part.kind != InputKind::kPart) return std::nullopt;
    tfswap::Cut own{part.axis, {part.pieces.front().begin}};
    for (const Piece& piece : part.pieces) {
      if (piece.begin != own.bounds.back()) return std::nullopt;
      own.bounds.push_back(piece.end);
    }
    if (requested && !(*requested == own)) return std::nullopt;
    requested = std::move(own);
  }
  return requested;
}

int64_t SectionPlanner::Reach(const InputPart& part, const tfswap::Cut& cut) const {
  int64_t reach = 0;
  for (int64_t s = 0; s < plan_.count; ++s) {
    int64_t last = s;
    while (last + 1 < plan_.count && cut.bounds[last + 1] < part.pieces[s].end) ++last;
    reach = std::max(reach, last - s);
  }
  return reach;
}

void SectionPlanner::FindStages() {
  std::vector<int>& stage = plan_.stage;
  std::vector<int64_t>& delay = plan_.delay;
  stage.assign(index_.size(), 0);
  delay.assign(index_.size(), 0);
  for (int n : plan_.order) {
    // After its inputs: in a later stage or, by parts, some sections later.
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
      const InputPart* part = IsCut(n) ? &plan_.split_rules[n]->inputs[i] : nullptr;
      if (part != nullptr && part->kind == InputKind::kInts) continue;
      const int from = inputs[i].node;
      const OutputPart* made =
          IsCut(from) ? &plan_.split_rules[from]->outputs[inputs[i].port] : nullptr;
      const bool by_parts = part != nullptr && part->kind == InputKind::kPart && made != nullptr &&
                            made->kind == OutputKind::kPart && made->cut.axis == part->axis;
      come_behind(from, by_parts, by_parts ? Reach(*part, made->cut) : 0);
    }
    if (IsConstant(n)) continue;
    for (int from : index_.control_inputs(n)) come_behind(from, IsCut(n) && IsCut(from), 0);
  }
  for (auto n = plan_.order.rbegin(); n != plan_.order.rend(); ++n) {
    if (cut_for_readers_[*n]) Postpone(*n);
  }
}

// Move the op to the time slot of its first reader.
void SectionPlanner::Postpone(int n) {
  std::optional<std::pair<int, int64_t>> first;
  const auto read_by = [&](int reader) {
    const std::pair<int, int64_t> turn = {plan_.stage[reader], plan_.delay[reader]};
    if (!first || turn < *first) first = turn;
  };
  for (const GraphIndex::Consumer& consumer : index_.consumers(n)) read_by(consumer.node);
  for (int reader : control_successors_[n]) read_by(reader);
  if (*first > std::make_pair(plan_.stage[n], plan_.delay[n])) {
    std::tie(plan_.stage[n], plan_.delay[n]) = *first;
  }
}

SectionPlan SectionPlanner::Plan() {
  plan_.order.resize(index_.size());
  for (int n = 0; n < index_.size(); ++n) plan_.order[n] = n;
  std::sort(plan_.order.begin(), plan_.order.end(),
            [&](int a, int b) { return index_.position(a) < index_.position(b); });
  plan_.split_rules.resize(index_.size());
  const BatchShape& batch = graph_.batch();
  by_rows_ = batch.examples % plan_.count != 0;
  if (by_rows_ ? batch.rows >= kMinRows * plan_.count : batch.examples > 1) Choose();
  for (int n = 0; n < index_.size(); ++n) plan_.ops += IsCut(n);
  if (plan_.ops > 0) FindStages();
  return std::move(plan_);
}

}  // namespace

SectionPlan PlanSections(const InferredGraph& graph, int64_t count) {
  return SectionPlanner(graph, count).Plan();
}

}  // namespace tfswap
