#include "grappler/index/tensor_lists.h"

#include <algorithm>
#include <set>

namespace tfswap {

using ::tensorflow::DataType;
using ::tensorflow::NodeDef;

namespace {

using Input = TensorListUses::Input;

// Return whether the outputs of an op are its input 0, or one of its inputs.
bool PassesOn(const std::string& op) {
  return op == "Enter" || op == "Exit" || op == "Merge" || op == "Switch" ||
         op == "NextIteration" || op == "Identity";
}

// The types that _AddToElement has kernels for.
bool IsSummable(DataType type) {
  return type == tensorflow::DT_FLOAT || type == tensorflow::DT_DOUBLE ||
         type == tensorflow::DT_HALF || type == tensorflow::DT_BFLOAT16;
}

class Finder {
 public:
  explicit Finder(const GraphIndex& index) : index_(index) {}

  std::vector<TensorListUses> Find() {
    // A list may be used to make one of zeros, if that one needs no zeros.
    for (int n = 0; n < index_.size(); ++n) {
      if (IsListOfZeros(index_, n)) Add(n, ReadsOf(n));
    }
    for (int n = 0; n < index_.size(); ++n) {
      if (!tensorflow::DataTypeIsFloating(ElementType(index_.node(n)))) continue;
      if (OpOf(n) == "TensorListFromTensor") Add(n, ReadsOf(n));
      if (!IsEmptyList(OpOf(n))) continue;
      for (const Input& read : ReadsOf(n)) Add(n, {read});  // TensorFlow merges empty lists
    }
    return std::move(lists_);
  }

 private:
  const std::string& OpOf(int n) const { return index_.node(n).op(); }

  std::vector<Input> ReadsOf(int n) const {
    std::vector<Input> reads;
    for (const GraphIndex::Consumer& consumer : index_.consumers(n)) {
      reads.push_back({consumer.node, consumer.input});
    }
    return reads;
  }

  void Add(int origin, const std::vector<Input>& begins) {
    TensorListUses list;
    list.origin = origin;
    list.begins = begins;
    if (!index_.IsManaged(origin) || !Follow(&list) || !IsMovable(list)) return;
    if (IsListOfZeros(index_, origin)) zeros_.insert(origin);
    lists_.push_back(std::move(list));
  }

  // Find all uses of a list; return whether all are known.
  bool Follow(TensorListUses* list) const {
    std::set<Input> reached(list->begins.begin(), list->begins.end());
    std::vector<Input> inputs = list->begins;
    std::set<int> passed;
    for (size_t i = 0; i < inputs.size(); ++i) {
      const auto [n, input] = inputs[i];
      const std::string& op = OpOf(n);
      const bool is_list = input == 0 || op == "Merge" || op == "AddN";
      if (!is_list || !index_.IsManaged(n)) return false;
      if (op == "TensorListPushBack") {
        list->pushes.push_back(n);
      } else if (op == "TensorListSetItem") {
        list->sets.push_back(n);
      } else if (op == "TensorListPopBack") {
        list->pops.push_back(n);
      } else if (op == "AddN" && AddedItem(index_, inputs[i]) >= 0) {
        list->adds.push_back(inputs[i]);
      } else if (!PassesOn(op)) {
        if (!NoteUse(n, list)) return false;
        continue;
      }
      if (!passed.insert(n).second) continue;
      for (const GraphIndex::Consumer& consumer : index_.consumers(n)) {
        if (consumer.port > 0 && op != "Switch") continue;
        const Input next{consumer.node, consumer.input};
        if (reached.insert(next).second) inputs.push_back(next);
      }
    }
    // Nothing else may become the list.
    return std::all_of(passed.begin(), passed.end(), [&](int n) {
      if (OpOf(n) != "Merge") return true;
      for (int i = 0; i < static_cast<int>(index_.inputs(n).size()); ++i) {
        if (reached.count({n, i}) == 0) return false;
      }
      return true;
    });
  }

  // Note a node that uses a list and does not return it; return whether that is known.
  bool NoteUse(int n, TensorListUses* list) const {
    const std::string& op = OpOf(n);
    if (op == "TensorListGetItem") {
      list->gets.push_back(n);
    } else if (op == "TensorListStack") {
      list->stacks.push_back(n);
    } else if (op == "TensorListElementShape") {
      list->shapes.push_back(n);
    } else {
      return op == "TensorListLength" || zeros_.count(n) > 0;
    }
    return true;
  }

  // Return whether the list keeps memory that can leave, and each use works with handles.
  bool IsMovable(const TensorListUses& list) const {
    const std::string& origin = OpOf(list.origin);
    const bool of_rows = origin == "TensorListFromTensor";
    if (list.Givers().empty()) return false;
    // What was never set has no shape.
    if (origin != "EmptyTensorList" && !of_rows && (!list.gets.empty() || !list.pops.empty())) {
      return false;
    }
    const std::vector<Input> taken = list.Taken();
    const bool holds = std::any_of(taken.begin(), taken.end(), [&](const Input& input) {
      const TensorId tensor = index_.inputs(input.first)[input.second];
      const std::string& maker = OpOf(index_.Root(tensor).node);
      return maker != "ReadVariableOp" && maker != "Const" && maker != "_Arg";
    });
    if (!holds && !of_rows && list.adds.empty()) return false;
    return std::all_of(list.shapes.begin(), list.shapes.end(), [&](int n) {
      return of_rows && GetBeside(index_, list, n) >= 0;  // all rows have one shape
    });
  }

  const GraphIndex& index_;
  std::vector<TensorListUses> lists_;
  std::set<int> zeros_;  // origins of lists that are movable
};

}  // namespace

std::vector<Input> TensorListUses::Taken() const {
  std::vector<Input> taken;
  for (int n : pushes) taken.push_back({n, 1});
  for (int n : sets) taken.push_back({n, 2});
  return taken;
}

std::vector<int> TensorListUses::Givers() const {
  std::vector<int> givers = pops;
  givers.insert(givers.end(), gets.begin(), gets.end());
  givers.insert(givers.end(), stacks.begin(), stacks.end());
  return givers;
}

bool IsEmptyList(const std::string& op) {
  return op == "EmptyTensorList" || op == "TensorListReserve";
}

bool IsListOfZeros(const GraphIndex& index, int n) {
  return index.node(n).op() == "ZerosLike" && index.OutputType({n, 0}) == tensorflow::DT_VARIANT;
}

DataType ElementType(const NodeDef& node) {
  const auto type = node.attr().find("element_dtype");
  return type == node.attr().end() ? tensorflow::DT_INVALID : type->second.type();
}

int AddedItem(const GraphIndex& index, const Input& list) {
  const std::vector<TensorId>& inputs = index.inputs(list.first);
  if (inputs.size() != 2) return -1;
  const int set = inputs[1 - list.second].node;
  const NodeDef& node = index.node(set);
  if (node.op() != "TensorListSetItem" || index.consumers(set).size() != 1) return -1;
  const bool is_single = index.node(index.inputs(set)[0].node).op() == "TensorListReserve";
  return is_single && IsSummable(ElementType(node)) ? set : -1;
}

int GetBeside(const GraphIndex& index, const TensorListUses& list, int n) {
  for (int get : list.gets) {
    if (index.AliveWith(get, n)) return get;
  }
  return -1;
}

std::vector<TensorListUses> FindMovableLists(const GraphIndex& index) {
  return Finder(index).Find();
}

}  // namespace tfswap
