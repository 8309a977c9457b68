#include "grappler/rewrite/large_constants.h"

#include <cstdint>
#include <limits>
#include <string>
#include <unordered_map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor.pb.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/framework/types.h"

namespace tfswap {

using ::tensorflow::DataType;
using ::tensorflow::DataTypeSize;
using ::tensorflow::GraphDef;
using ::tensorflow::NodeDef;
using ::tensorflow::Tensor;
using ::tensorflow::TensorProto;
using ::tensorflow::TensorShape;

namespace {

constexpr int64_t kMinBytes = 1 << 16;

// Return whether the values represent one number; an empty list represents zeros.
template <typename Values>
bool IsOne(Values* values) {
  if (values->empty()) values->Add(0);
  return values->size() == 1;
}

// Return whether the constant is large and stored as one repeated number, as Grappler writes folded
// constants.
bool IsRepeated(const TensorProto& proto, TensorProto* number) {
  const DataType type = proto.dtype();
  if (!TensorShape::IsValid(proto.tensor_shape()) || !proto.tensor_content().empty()) return false;
  const TensorShape shape(proto.tensor_shape());
  if (shape.num_elements() * DataTypeSize(type) < kMinBytes) return false;
  for (const auto& dimension : shape) {
    if (dimension.size > std::numeric_limits<int32_t>::max()) return false;
  }
  *number = proto;
  number->clear_tensor_shape();
  switch (type) {
    case tensorflow::DT_FLOAT:
      return IsOne(number->mutable_float_val());
    case tensorflow::DT_DOUBLE:
      return IsOne(number->mutable_double_val());
    case tensorflow::DT_HALF:
    case tensorflow::DT_BFLOAT16:
      return IsOne(number->mutable_half_val());
    default:
      return false;
  }
}

// Return a new node with the device and control inputs of the constant.
NodeDef Beside(const NodeDef& constant, const std::string& name, const std::string& op) {
  NodeDef node;
  node.set_name(name);
  node.set_op(op);
  node.set_device(constant.device());
  *node.mutable_input() = constant.input();
  return node;
}

// Return a node for a shape that constant folding does not see.
NodeDef Dimensions(const NodeDef& constant, const std::string& name, const TensorShape& shape) {
  NodeDef node = Beside(constant, name, "_Dimensions");
  shape.AsProto((*node.mutable_attr())["shape"].mutable_shape());
  return node;
}

// Replaces large constants by Fills and prevents the folding of large expansions.
class ConstantUnfolder {
 public:
  explicit ConstantUnfolder(const GraphDef& graph) : graph_(graph) {
    for (const NodeDef& node : graph.node()) {
      if (node.op() == "Const") constants_[node.name()] = &node;
    }
  }

  GraphDef Graph() {
    *result_.mutable_library() = graph_.library();
    *result_.mutable_versions() = graph_.versions();
    for (const NodeDef& node : graph_.node()) {
      if (!FillInstead(node) && !Unfolded(node)) *result_.add_node() = node;
    }
    return std::move(result_);
  }

 private:
  bool FillInstead(const NodeDef& node) {
    TensorProto number;
    const auto value = node.attr().find("value");
    if (node.op() != "Const" || value == node.attr().end() ||
        !IsRepeated(value->second.tensor(), &number)) {
      return false;
    }
    const TensorShape shape(value->second.tensor().tensor_shape());
    const std::string prefix = absl::StrCat("tfswap/fill/", node.name());
    NodeDef dimensions = Dimensions(node, absl::StrCat(prefix, "/dimensions"), shape);
    NodeDef filling = Beside(node, absl::StrCat(prefix, "/value"), "Const");
    (*filling.mutable_attr())["dtype"].set_type(number.dtype());
    *(*filling.mutable_attr())["value"].mutable_tensor() = number;
    NodeDef* fill = result_.add_node();
    *fill = node;
    fill->set_op("Fill");
    fill->clear_input();
    fill->add_input(dimensions.name());
    fill->add_input(filling.name());
    fill->mutable_attr()->erase("value");
    fill->mutable_attr()->erase("dtype");
    (*fill->mutable_attr())["T"].set_type(number.dtype());
    (*fill->mutable_attr())["index_type"].set_type(tensorflow::DT_INT32);
    *result_.add_node() = std::move(dimensions);
    *result_.add_node() = std::move(filling);
    return true;
  }

  // Fill(dims, value), BroadcastTo(input, shape) and Tile(input, multiples) expand a small input.
  bool Unfolded(const NodeDef& node) {
    const bool fills = node.op() == "Fill";
    if (!fills && node.op() != "BroadcastTo" && node.op() != "Tile") return false;
    const int sizes_at = fills ? 0 : 1;
    Tensor sizes, value;
    if (!Value(node, sizes_at, &sizes) || !Value(node, 1 - sizes_at, &value)) return false;
    if (sizes.dtype() != tensorflow::DT_INT32 || sizes.dims() != 1) return false;
    TensorShape shape;
    for (int i = 0; i < sizes.NumElements(); ++i) {
      if (!shape.AddDimWithStatus(sizes.vec<int32_t>()(i)).ok()) return false;
    }
    const int64_t times = node.op() == "Tile" ? value.NumElements() : 1;
    if (shape.num_elements() * times * DataTypeSize(value.dtype()) < kMinBytes) return false;
    NodeDef dimensions = Dimensions(*constants_.at(node.input(sizes_at)),
                                    absl::StrCat("tfswap/fill/", node.name()), shape);
    NodeDef* expanded = result_.add_node();
    *expanded = node;
    expanded->set_input(sizes_at, dimensions.name());
    *result_.add_node() = std::move(dimensions);
    return true;
  }

  // Read the input of a node if it is a constant.
  bool Value(const NodeDef& node, int input, Tensor* value) const {
    if (input >= node.input_size()) return false;
    const auto constant = constants_.find(node.input(input));
    if (constant == constants_.end()) return false;
    const auto found = constant->second->attr().find("value");
    return found != constant->second->attr().end() && value->FromProto(found->second.tensor());
  }

  const GraphDef& graph_;
  std::unordered_map<std::string, const NodeDef*> constants_;
  GraphDef result_;
};

}  // namespace

GraphDef WithoutLargeConstants(const GraphDef& graph) { return ConstantUnfolder(graph).Graph(); }

}  // namespace tfswap
