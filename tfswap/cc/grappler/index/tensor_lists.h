#ifndef TFSWAP_CC_GRAPPLER_INDEX_TENSOR_LISTS_H_
#define TFSWAP_CC_GRAPPLER_INDEX_TENSOR_LISTS_H_

#include <string>
#include <utility>
#include <vector>

#include "grappler/index/graph_index.h"

namespace tfswap {

// The nodes that handle one TensorList, from where it is made to its last uses.
struct TensorListUses {
  using Input = std::pair<int, int>;  // a node and one of its data inputs

  int origin = -1;
  std::vector<Input> begins;            // reads of the origin; of an empty list, one
  std::vector<int> pushes, sets;        // nodes that take a tensor
  std::vector<int> pops, gets, stacks;  // nodes that give one
  std::vector<int> shapes;              // TensorListElementShape
  std::vector<Input> adds;              // AddN of the list and one with a single element

  // All nodes that take tensors, and that input of each.
  std::vector<Input> Taken() const;
  // All nodes that give tensors.
  std::vector<int> Givers() const;
};

// Return whether the op makes a list without elements.
bool IsEmptyList(const std::string& op);
// Return whether the op makes a list of zeros: of the gradients of another list's elements.
bool IsListOfZeros(const GraphIndex& index, int n);
tensorflow::DataType ElementType(const tensorflow::NodeDef& node);
// Return the node that sets the single element of the list that an AddN adds to another one, its
// input `list`; -1 if it is not such a sum.
int AddedItem(const GraphIndex& index, const TensorListUses::Input& list);
// Return a node that gets an element of the list whenever `n` runs; -1 if there is none.
int GetBeside(const GraphIndex& index, const TensorListUses& list, int n);

// Return the lists of floating-point tensors on the managed device of which each use is known, and
// works with handles instead of the tensors (rewrite/loop_lists.h).
std::vector<TensorListUses> FindMovableLists(const GraphIndex& index);

}  // namespace tfswap

#endif  // TFSWAP_CC_GRAPPLER_INDEX_TENSOR_LISTS_H_
