#include "grappler/rewrite/loop_lists.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "grappler/index/tensor_lists.h"
#include "grappler/rewrite/rewriter.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor.pb.h"

namespace tfswap {

using ::tensorflow::DataType;
using ::tensorflow::GraphDef;
using ::tensorflow::NodeDef;

namespace {

using Input = TensorListUses::Input;

// One computes, the elements of the next one return. More would take memory: TensorFlow allows 10
// to 32.
constexpr int kIterationsAtOnce = 2;

// Return whether the loop around `n` computes a tensor from that of the iteration before: it runs
// one iteration after the other, whatever it may do.
bool IsRecurrent(const GraphIndex& index, int n) {
  for (int next = 0; next < index.size(); ++next) {
    if (index.node(next).op() != "NextIteration" || !index.SameFrame(next, n)) continue;
    const TensorId carried = index.Root(index.inputs(next)[0]);
    if (!tensorflow::DataTypeIsFloating(index.OutputType(carried))) continue;
    if (index.node(carried.node).op() != "Switch") return true;
    // What stays the same goes from the Switch back to the Merge before it.
    const auto& readers = index.consumers(next);
    if (readers.empty() || readers[0].node != index.inputs(carried.node)[0].node) return true;
  }
  return false;
}

// Let recurrent loops that keep these lists, and the backward loops that take from them, run few
// iterations at once.
void LimitIterations(const GraphIndex& index, const std::vector<TensorListUses>& lists,
                     GraphDef* graph) {
  std::vector<int> inside;
  for (const TensorListUses& list : lists) {
    if (list.pushes.empty() || list.pops.empty() || !IsRecurrent(index, list.pushes[0])) continue;
    inside.push_back(list.pushes[0]);
    inside.push_back(list.pops[0]);
  }
  for (int n = 0; n < index.size(); ++n) {
    if (index.node(n).op() != "Enter" || index.consumers(n).empty()) continue;
    const int reader = index.consumers(n)[0].node;
    if (std::any_of(inside.begin(), inside.end(),
                    [&](int each) { return index.SameFrame(each, reader); })) {
      NodeDef* enter = graph->mutable_node(n);
      (*enter->mutable_attr())["parallel_iterations"].set_i(kIterationsAtOnce);
    }
  }
}

class ListRewriter {
 public:
  explicit ListRewriter(const GraphIndex& index) : index_(index), result_(index.graph()) {}

  GraphDef Make() {
    const std::vector<TensorListUses> lists = FindMovableLists(index_);
    if (lists.empty()) return std::move(result_);
    LimitIterations(index_, lists, &result_);
    for (const TensorListUses& list : lists) NoteReads(list);
    // First the readers of elements, which may be any of the nodes that are changed then.
    for (const TensorListUses& list : lists) {
      for (int n : list.gets) BringBack({n, 0});
      for (int n : list.pops) BringBack({n, 1});
    }
    for (const TensorListUses& list : lists) {
      MakeOrigin(list);
      for (const Input& taken : list.Taken()) Take(taken);
      for (const Input& add : list.adds) AddToElement(list, add);
      for (int n : list.stacks) Stack(n);
      for (int n : list.shapes) ReadShape(n, GetBeside(index_, list, n));
    }
    return WithoutUnused();
  }

 private:
  struct Less {
    bool operator()(const TensorId& a, const TensorId& b) const {
      return a.node != b.node ? a.node < b.node : a.port < b.port;
    }
  };

  const std::string& NameOf(int n) const { return index_.node(n).name(); }
  NodeDef* Mutable(int n) { return result_.mutable_node(n); }

  // Note what takes and gives elements, and when.
  void NoteReads(const TensorListUses& list) {
    std::set<int64_t> reads;
    for (int n : list.Givers()) reads.insert(index_.position(n));
    for (int n : list.gets) handles_given_.insert({n, 0});
    for (int n : list.pops) {
      handles_given_.insert({n, 1});
      pops_.insert(index_.position(n));
    }
    for (const Input& taken : list.Taken()) {
      handles_taken_.insert(taken);
      reads_of_[index_.inputs(taken.first)[taken.second]].insert(reads.begin(), reads.end());
    }
  }

  NodeDef* AddNode(const std::string& name, const std::string& op, int beside) {
    NodeDef* node = result_.add_node();
    node->set_name(absl::StrCat(kNodePrefix, "list/", absl::StrReplaceAll(name, {{":", "_"}})));
    node->set_op(op);
    node->set_device(index_.node(beside).device());
    return node;
  }

  // Change a node's op and data inputs; its control inputs stay.
  static void Change(const std::string& op, std::vector<std::string> inputs, NodeDef* node) {
    for (const std::string& input : node->input()) {
      if (input[0] == '^') inputs.push_back(input);
    }
    node->set_op(op);
    node->clear_input();
    for (std::string& input : inputs) node->add_input(std::move(input));
    node->clear_attr();
    node->clear_experimental_type();
  }

  static void HoldsHandles(NodeDef* node) {
    (*node->mutable_attr())["element_dtype"].set_type(tensorflow::DT_VARIANT);
    node->clear_experimental_type();
  }

  static void SetType(DataType type, NodeDef* node) { (*node->mutable_attr())["T"].set_type(type); }

  // Note the position of the op that reads an element next; 0: unknown.
  void SetNextUse(int64_t position, NodeDef* node) {
    (*node->mutable_attr())["next_use"].set_i(position);
    (*node->mutable_attr())["order"].set_i(pops_.count(position) > 0 ? -1 : 1);
  }

  // Return a constant in the frame of `like`: the shape of handles, or (false) any shape.
  std::string Shape(const std::string& name, int like, bool of_handles) {
    tensorflow::Tensor value(tensorflow::DT_INT32, of_handles ? tensorflow::TensorShape({0})
                                                              : tensorflow::TensorShape({}));
    if (!of_handles) value.scalar<int32_t>()() = -1;
    NodeDef* node = AddNode(absl::StrCat("shape/", name), "Const", like);
    (*node->mutable_attr())["dtype"].set_type(tensorflow::DT_INT32);
    value.AsProtoTensorContent((*node->mutable_attr())["value"].mutable_tensor());
    node->add_input(absl::StrCat("^", NameOf(like)));
    return node->name();
  }

  // Let the readers of a handle read its tensor.
  void BringBack(TensorId source) {
    const NodeDef& given = index_.node(source.node);
    HoldsHandles(Mutable(source.node));
    const std::string name = absl::StrCat(kNodePrefix, "list/in/", given.name());
    bool is_read = false;
    for (const GraphIndex::Consumer& reader : index_.consumers(source.node)) {
      if (reader.port != source.port || handles_taken_.count({reader.node, reader.input}) > 0) {
        continue;
      }
      is_read = true;
      Mutable(reader.node)->set_input(reader.input, name);
    }
    if (!is_read) return;
    NodeDef* node = AddNode(absl::StrCat("in/", given.name()), "_CopyFromHost", source.node);
    node->add_input(InputName(given.name(), source.port));
    SetType(ElementType(given), node);
    const std::set<int64_t>& reads = reads_of_[source];
    const auto next = reads.upper_bound(index_.position(source.node));
    SetNextUse(next == reads.end() ? 0 : *next, node);
  }

  // Make a list that holds handles.
  void MakeOrigin(const TensorListUses& list) {
    const NodeDef& given = index_.node(list.origin);
    NodeDef* made = Mutable(list.origin);
    if (IsListOfZeros(index_, list.origin)) {
      const int like = index_.inputs(list.origin)[0].node;
      NodeDef* length =
          AddNode(absl::StrCat("length/", given.name()), "TensorListLength", list.origin);
      length->add_input(made->input(0));
      Change("TensorListReserve", {Shape(given.name(), like, /*of_handles=*/false), length->name()},
             made);
    } else if (IsEmptyList(given.op())) {
      const auto& [reader, input] = list.begins.front();
      const std::string suffix = absl::StrCat("/", NameOf(reader), "/", input);
      made = AddNode(absl::StrCat("empty/", given.name(), suffix), given.op(), list.origin);
      const std::string name = made->name();
      *made = given;
      made->set_name(name);
      made->set_input(0, Shape(absl::StrCat(given.name(), suffix),
                               index_.inputs(list.origin)[0].node, /*of_handles=*/false));
      Mutable(reader)->set_input(input, name);
    } else {
      NodeDef* rows = AddNode(absl::StrCat("rows/", given.name()), "_RowsToHost", list.origin);
      rows->add_input(made->input(0));
      SetType(ElementType(given), rows);
      int64_t first = index_.position(list.Givers().front());
      for (int n : list.Givers()) first = std::min<int64_t>(first, index_.position(n));
      (*rows->mutable_attr())["next_use"].set_i(first);
      made->set_input(0, rows->name());
      made->set_input(1, Shape(given.name(), index_.inputs(list.origin)[1].node,
                               /*of_handles=*/true));
    }
    (*made->mutable_attr())["shape_type"].set_type(tensorflow::DT_INT32);
    HoldsHandles(made);
  }

  // Let a list take the handle of a tensor.
  void Take(const Input& taken) {
    const auto& [n, input] = taken;
    const TensorId tensor = index_.inputs(n)[input];
    HoldsHandles(Mutable(n));
    if (handles_given_.count(tensor) > 0) return;  // it is one
    std::string& handle = handles_[tensor];
    if (handle.empty()) {
      NodeDef* node =
          AddNode(absl::StrCat("out/", NameOf(tensor.node), "_", tensor.port), "_ElementToHost", n);
      node->add_input(InputName(NameOf(tensor.node), tensor.port));
      SetType(index_.OutputType(tensor), node);
      SetNextUse(*reads_of_[tensor].begin(), node);
      handle = node->name();
    }
    Mutable(n)->set_input(input, handle);
  }

  // Let an AddN change the one element instead of adding lists that are zero elsewhere.
  void AddToElement(const TensorListUses& list, const Input& add) {
    const int set = AddedItem(index_, add);
    const std::string& name = NameOf(add.first);
    const std::string before = Mutable(add.first)->input(add.second);
    const std::string number = Mutable(set)->input(1), tensor = Mutable(set)->input(2);
    NodeDef* element = AddNode(absl::StrCat("element/", name), "TensorListGetItem", add.first);
    Change(element->op(),
           {before, number, Shape(name, index_.inputs(set)[1].node, /*of_handles=*/true)}, element);
    HoldsHandles(element);
    NodeDef* sum = AddNode(absl::StrCat("sum/", name), "_AddToElement", add.first);
    Change(sum->op(), {element->name(), tensor}, sum);
    SetType(ElementType(index_.node(set)), sum);
    SetNextUse(list.stacks.empty() ? 0 : index_.position(list.stacks.front()), sum);
    NodeDef* changed = Mutable(add.first);
    Change("TensorListSetItem", {before, number, sum->name()}, changed);
    HoldsHandles(changed);
    unused_.insert(NameOf(set));
    unused_.insert(NameOf(index_.inputs(set)[0].node));
  }

  // Stack the handles of a list, then their tensors.
  void Stack(int n) {
    const NodeDef& given = index_.node(n);
    NodeDef* stacked = Mutable(n);
    NodeDef* handles = AddNode(absl::StrCat("stack/", given.name()), given.op(), n);
    handles->add_input(stacked->input(0));
    handles->add_input(Shape(given.name(), index_.inputs(n)[1].node, /*of_handles=*/true));
    (*handles->mutable_attr())["num_elements"] = given.attr().at("num_elements");
    HoldsHandles(handles);
    Change("_StackFromHost", {handles->name(), stacked->input(1)}, stacked);
    SetType(ElementType(given), stacked);
  }

  // Read the shape of a list's elements from the one that `get` gets.
  void ReadShape(int n, int get) {
    NodeDef* shape = Mutable(n);
    shape->set_op("_ShapeOfCopy");
    shape->set_input(0, NameOf(get));
    shape->clear_experimental_type();
  }

  // Return the graph without the nodes that nothing reads any more.
  GraphDef WithoutUnused() {
    std::set<std::string> read;
    for (const NodeDef& node : result_.node()) {
      if (node.op() == "TensorListSetItem" && unused_.count(node.name()) > 0) continue;
      for (const std::string& input : node.input()) {
        const std::string name = input.substr(input[0] == '^' ? 1 : 0);
        read.insert(name.substr(0, name.rfind(':')));
      }
    }
    GraphDef result;
    *result.mutable_library() = result_.library();
    *result.mutable_versions() = result_.versions();
    for (NodeDef& node : *result_.mutable_node()) {
      const bool goes = unused_.count(node.name()) > 0 && read.count(node.name()) == 0;
      if (!goes) *result.add_node() = std::move(node);
    }
    return result;
  }

  const GraphIndex& index_;
  GraphDef result_;
  std::set<std::string> unused_;
  std::set<TensorId, Less> handles_given_;
  std::set<Input> handles_taken_;
  std::set<int64_t> pops_;                                // positions
  std::map<TensorId, std::set<int64_t>, Less> reads_of_;  // positions, by what lists take
  std::map<TensorId, std::string, Less> handles_;         // by what lists take
};

}  // namespace

bool HasLists(const GraphDef& graph) {
  return std::any_of(graph.node().begin(), graph.node().end(), [](const NodeDef& node) {
    return IsEmptyList(node.op()) || node.op() == "TensorListFromTensor";
  });
}

GraphDef WithFewIterations(const GraphIndex& index) {
  GraphDef graph = index.graph();
  if (!index.ManagesGpu()) LimitIterations(index, FindMovableLists(index), &graph);
  return graph;
}

GraphDef WithMovableLists(const GraphIndex& index) {
  return index.ManagesGpu() ? index.graph() : ListRewriter(index).Make();
}

}  // namespace tfswap
