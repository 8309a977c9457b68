#include "grappler/sections/section_emitter.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "grappler/index/input_names.h"
#include "tensorflow/core/framework/tensor.h"

namespace tfswap {

using ::tensorflow::DataType;
using ::tensorflow::GraphDef;
using ::tensorflow::NodeDef;
using ::tensorflow::Tensor;

namespace {

constexpr char kTimeSlotAttribute[] = "_tfswap_turn";

bool IsZero(const std::vector<int64_t>& numbers) {
  return std::all_of(numbers.begin(), numbers.end(), [](int64_t number) { return number == 0; });
}

void SetPaddings(const std::vector<int64_t>& paddings, NodeDef* node) {
  auto& attributes = *node->mutable_attr();
  const bool pads = !IsZero(paddings);
  attributes["padding"].set_s(pads ? "EXPLICIT" : "VALID");
  auto* list = attributes["explicit_paddings"].mutable_list();
  list->clear_i();
  for (int64_t padding : paddings) {
    if (pads) list->add_i(padding);
  }
}

}  // namespace

std::string SectionEmitter::CopyName(int n, int64_t section) const {
  return absl::StrCat(index_.node(n).name(), "/section_", section);
}

std::string SectionEmitter::BaseName(TensorId tensor) const {
  return absl::StrCat(index_.node(tensor.node).name(), "/sections_", tensor.port, "/");
}

NodeDef* SectionEmitter::Add(const std::string& name, const std::string& op, int like) {
  added_.insert(name);
  NodeDef* node = result_.add_node();
  node->set_name(name);
  node->set_op(op);
  node->set_device(index_.node(like).device());
  return node;
}

NodeDef* SectionEmitter::AddAt(TimeSlot turn, const std::string& name, const std::string& op,
                               int like) {
  NodeDef* node = Add(name, op, like);
  slot_nodes_[turn].push_back(result_.node_size() - 1);
  // Otherwise TensorFlow merges equal slices and keeps the result from the first slot to the last.
  (*node->mutable_attr())[kTimeSlotAttribute].set_s(absl::StrCat(turn.stage, "/", turn.slot));
  return node;
}

std::string SectionEmitter::AddInts(const std::string& name, const std::vector<int64_t>& values,
                                    DataType type, const std::vector<int64_t>& shape, int like) {
  if (added_.count(name) > 0) return name;
  Tensor numbers(type, tensorflow::TensorShape(shape));
  for (size_t i = 0; i < values.size(); ++i) {
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

std::string SectionEmitter::AddFactor(const std::string& name, float factor, int like) {
  Tensor number(tensorflow::DT_FLOAT, tensorflow::TensorShape());
  number.scalar<float>()() = factor;
  NodeDef* node = Add(name, "Const", like);
  (*node->mutable_attr())["dtype"].set_type(tensorflow::DT_FLOAT);
  number.AsProtoTensorContent((*node->mutable_attr())["value"].mutable_tensor());
  return name;
}

std::string SectionEmitter::AddSlice(const std::string& of, TensorId like, int axis, Piece piece,
                                     const std::string& name, TimeSlot turn) {
  const size_t rank = DimsOf(like).size();
  std::vector<int64_t> begin(rank, 0), size(rank, -1);
  begin[axis] = piece.begin;
  size[axis] = piece.end - piece.begin;
  return AddBoxSlice(of, like, begin, size, name, turn);
}

std::string SectionEmitter::AddBoxSlice(const std::string& of, TensorId like,
                                        const std::vector<int64_t>& begin,
                                        const std::vector<int64_t>& size, const std::string& name,
                                        TimeSlot turn) {
  const auto rank = static_cast<int64_t>(begin.size());
  const std::string from =
      AddInts(absl::StrCat(name, "/begin"), begin, tensorflow::DT_INT32, {rank}, like.node);
  const std::string extent =
      AddInts(absl::StrCat(name, "/size"), size, tensorflow::DT_INT32, {rank}, like.node);
  NodeDef* node = AddAt(turn, name, "Slice", like.node);
  for (const std::string& input : {of, from, extent}) node->add_input(input);
  (*node->mutable_attr())["T"].set_type(index_.OutputType(like));
  (*node->mutable_attr())["Index"].set_type(tensorflow::DT_INT32);
  return name;
}

std::string SectionEmitter::AddPad(const std::string& of, TensorId like,
                                   const std::vector<int64_t>& zeros, const std::string& name,
                                   TimeSlot turn) {
  const auto rank = static_cast<int64_t>(zeros.size()) / 2;
  const std::string by =
      AddInts(absl::StrCat(name, "/zeros"), zeros, tensorflow::DT_INT32, {rank, 2}, like.node);
  NodeDef* node = AddAt(turn, name, "Pad", like.node);
  node->add_input(of);
  node->add_input(by);
  (*node->mutable_attr())["T"].set_type(index_.OutputType(like));
  (*node->mutable_attr())["Tpaddings"].set_type(tensorflow::DT_INT32);
  return name;
}

std::string SectionEmitter::AddConcat(const std::vector<std::string>& parts, TensorId like,
                                      int axis, const std::string& name,
                                      std::optional<TimeSlot> turn) {
  const std::string along =
      AddInts(absl::StrCat(name, "/axis"), {axis}, tensorflow::DT_INT32, {}, like.node);
  NodeDef* node =
      turn ? AddAt(*turn, name, "ConcatV2", like.node) : Add(name, "ConcatV2", like.node);
  for (const std::string& part : parts) node->add_input(part);
  node->add_input(along);
  (*node->mutable_attr())["N"].set_i(static_cast<int64_t>(parts.size()));
  (*node->mutable_attr())["T"].set_type(index_.OutputType(like));
  (*node->mutable_attr())["Tidx"].set_type(tensorflow::DT_INT32);
  return name;
}

std::string SectionEmitter::PieceOf(TensorId tensor, int axis, Piece piece, TimeSlot turn) {
  const std::string name = absl::StrCat(BaseName(tensor), "axis_", axis, "/", piece.begin, "_",
                                        piece.end, "/at_", turn.stage, "_", turn.slot);
  if (added_.count(name) > 0) return name;
  const OutputPart* given =
      plan_.IsCut(tensor.node) ? &plan_.split_rules[tensor.node]->outputs[tensor.port] : nullptr;
  if (given == nullptr || given->kind != OutputKind::kPart || given->cut.axis != axis) {
    const std::string whole = Whole(tensor);
    if (piece == Piece{0, DimsOf(tensor)[axis]}) return whole;
    return AddSlice(whole, tensor, axis, piece, name, turn);
  }
  std::vector<std::string> found;
  for (int64_t s = 0; s < plan_.count; ++s) {
    const Piece part = given->cut.part(s);
    const Piece shared = {std::max(part.begin, piece.begin), std::min(part.end, piece.end)};
    if (shared.begin >= shared.end) continue;
    const std::string copy = InputName(CopyName(tensor.node, s), tensor.port);
    if (shared == part) {
      found.push_back(copy);
      continue;
    }
    const std::string own = shared == piece ? name : absl::StrCat(name, "/of_", s);
    const Piece within = {shared.begin - part.begin, shared.end - part.begin};
    found.push_back(AddSlice(copy, tensor, axis, within, own, turn));
  }
  return found.size() == 1 ? found.front() : AddConcat(found, tensor, axis, name, turn);
}

std::string SectionEmitter::JoinParts(TensorId tensor, const Cut& cut) {
  std::vector<std::string> parts;
  for (int64_t s = 0; s < plan_.count; ++s) {
    parts.push_back(InputName(CopyName(tensor.node, s), tensor.port));
  }
  return AddConcat(parts, tensor, cut.axis, absl::StrCat(BaseName(tensor), "whole"), std::nullopt);
}

std::string SectionEmitter::SumParts(TensorId tensor, const OutputPart& part) {
  const std::string base = BaseName(tensor);
  const DataType type = index_.OutputType(tensor);
  const auto total = static_cast<float>(part.cut.bounds.back() - part.cut.bounds.front());
  const auto extent = [&](int64_t s) { return part.cut.part(s).end - part.cut.part(s).begin; };
  bool alike = true;
  for (int64_t s = 1; s < plan_.count; ++s) alike = alike && extent(s) == extent(0);
  const auto scaled = [&](const std::string& of, int64_t s, const std::string& name, bool at) {
    const std::string by = AddFactor(absl::StrCat(base, "factor_", s),
                                     static_cast<float>(extent(s)) / total, tensor.node);
    NodeDef* node = at ? AddAt(TimeSlotOf(tensor.node, s), name, "Mul", tensor.node)
                       : Add(name, "Mul", tensor.node);
    node->add_input(of);
    node->add_input(by);
    (*node->mutable_attr())["T"].set_type(tensorflow::DT_FLOAT);
    return name;
  };
  const auto summand = [&](int64_t s) {
    const std::string copy = InputName(CopyName(tensor.node, s), tensor.port);
    if (part.kind != OutputKind::kMean || alike) return copy;
    return scaled(copy, s, absl::StrCat(base, "share_", s), true);
  };
  std::string sum = summand(0);
  for (int64_t s = 1; s < plan_.count; ++s) {
    const std::string next = summand(s);
    NodeDef* node =
        AddAt(TimeSlotOf(tensor.node, s), absl::StrCat(base, "sum_", s), "AddV2", tensor.node);
    node->add_input(sum);
    node->add_input(next);
    (*node->mutable_attr())["T"].set_type(type);
    sum = node->name();
  }
  if (part.kind == OutputKind::kMean && alike) {
    return scaled(sum, 0, absl::StrCat(base, "mean"), false);
  }
  return sum;
}

std::string SectionEmitter::Whole(TensorId tensor) {
  if (!plan_.IsCut(tensor.node)) return InputName(index_.node(tensor.node).name(), tensor.port);
  const auto known = wholes_.find({tensor.node, tensor.port});
  if (known != wholes_.end()) return known->second;
  const OutputPart& part = plan_.split_rules[tensor.node]->outputs[tensor.port];
  const std::string name =
      part.kind == OutputKind::kPart ? JoinParts(tensor, part.cut) : SumParts(tensor, part);
  wholes_[{tensor.node, tensor.port}] = name;
  return name;
}

std::string SectionEmitter::Input(int n, size_t i, int64_t section) {
  const InputPart& part = plan_.split_rules[n]->inputs[i];
  const TensorId tensor = index_.inputs(n)[i];
  switch (part.kind) {
    case InputKind::kPart: {
      const TimeSlot turn = TimeSlotOf(n, section);
      const std::string piece = PieceOf(tensor, part.axis, part.pieces[section], turn);
      if (part.zeros.empty() || IsZero(part.zeros[section])) return piece;
      return AddPad(piece, tensor, part.zeros[section],
                    absl::StrCat(CopyName(n, section), "/padded_", i), turn);
    }
    case InputKind::kInts: {
      const auto same = std::find(part.ints.begin(), part.ints.end(), part.ints[section]);
      return AddInts(absl::StrCat(CopyName(n, same - part.ints.begin()), "/input_", i), *same,
                     index_.OutputType(tensor), DimsOf(tensor), n);
    }
    default:
      return Whole(tensor);
  }
}

void SectionEmitter::EmitCopies(int n) {
  const SplitRule& how = *plan_.split_rules[n];
  for (int64_t section = 0; section < plan_.count; ++section) {
    std::vector<std::string> names;
    for (size_t i = 0; i < index_.inputs(n).size(); ++i) names.push_back(Input(n, i, section));
    const KeptRegion* kept = how.kept.empty() ? nullptr : &how.kept[section];
    const bool makes_more = kept != nullptr && !kept->IsAll();
    const std::string name =
        makes_more ? absl::StrCat(CopyName(n, section), "/more") : CopyName(n, section);
    NodeDef* node = AddAt(TimeSlotOf(n, section), name, index_.node(n).op(), n);
    for (const auto& [key, value] : index_.node(n).attr()) (*node->mutable_attr())[key] = value;
    node->mutable_attr()->erase("_class");
    node->mutable_attr()->erase("_output_shapes");
    if (!how.paddings.empty()) SetPaddings(how.paddings[section], node);
    for (const std::string& input : names) node->add_input(input);
    for (int from : index_.control_inputs(n)) {
      node->add_input(absl::StrCat(
          "^", plan_.IsCut(from) ? CopyName(from, section) : index_.node(from).name()));
    }
    if (makes_more) {
      AddBoxSlice(name, {n, 0}, kept->begin, kept->size, CopyName(n, section),
                  TimeSlotOf(n, section));
    }
  }
}

void SectionEmitter::EmitReader(int n) {
  std::vector<std::string> names;
  for (const TensorId& input : index_.inputs(n)) names.push_back(Whole(input));
  for (int from : index_.control_inputs(n)) {
    if (!plan_.IsCut(from)) {
      names.push_back(absl::StrCat("^", index_.node(from).name()));
      continue;
    }
    // A folded constant need not wait for the ops it was folded from.
    if (index_.node(n).op() == "Const") continue;
    for (int64_t section = 0; section < plan_.count; ++section) {
      names.push_back(absl::StrCat("^", CopyName(from, section)));
    }
  }
  NodeDef* node = result_.add_node();
  *node = index_.node(n);
  node->clear_input();
  for (const std::string& name : names) node->add_input(name);
}

// The first nodes of a slot wait for the last nodes of the previous slot, also across stages:
// otherwise a slice for a gradient could run as soon as its tensor exists, long before the
// gradient.
void SectionEmitter::AddBarriers() {
  const std::vector<int>* before = nullptr;
  TimeSlot turn_before{};
  for (const auto& [turn, members] : slot_nodes_) {
    const std::vector<int>* ended = std::exchange(before, &members);
    const TimeSlot behind = std::exchange(turn_before, turn);
    if (ended == nullptr) continue;
    std::set<std::string> read;
    for (int member : *ended) {
      for (const std::string& input : result_.node(member).input()) {
        read.insert(NodeOf(input));
      }
    }
    const std::string name = absl::StrCat("sections/behind_", behind.stage, "_", behind.slot);
    NodeDef* barrier = result_.add_node();
    barrier->set_name(name);
    barrier->set_op("NoOp");
    barrier->set_device(result_.node(members.front()).device());
    for (int member : *ended) {
      const std::string& done = result_.node(member).name();
      if (read.count(done) == 0) barrier->add_input(absl::StrCat("^", done));
    }
    std::set<std::string> own;
    for (int member : members) own.insert(result_.node(member).name());
    for (int member : members) {
      NodeDef* node = result_.mutable_node(member);
      const bool begins =
          std::none_of(node->input().begin(), node->input().end(),
                       [&](const std::string& input) { return own.count(NodeOf(input)) > 0; });
      if (begins) node->add_input(absl::StrCat("^", name));
    }
  }
}

GraphDef SectionEmitter::Emit() {
  for (int n : plan_.order) {
    if (plan_.IsCut(n)) {
      EmitCopies(n);
    } else {
      EmitReader(n);
    }
  }
  AddBarriers();
  *result_.mutable_library() = graph_.graph().library();
  *result_.mutable_versions() = graph_.graph().versions();
  return std::move(result_);
}

}  // namespace tfswap
