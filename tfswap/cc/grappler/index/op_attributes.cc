#include "grappler/index/op_attributes.h"

#include "tensorflow/core/framework/attr_value.pb.h"

namespace tfswap {

namespace {

const tensorflow::AttrValue& Find(const OpView& op, const char* name) {
  static const auto* none = new tensorflow::AttrValue();
  auto it = op.node->attr().find(name);
  return it == op.node->attr().end() ? *none : it->second;
}

}  // namespace

bool Flag(const OpView& op, const char* name) { return Find(op, name).b(); }

int64_t Integer(const OpView& op, const char* name) { return Find(op, name).i(); }

std::vector<int64_t> Integers(const OpView& op, const char* name) {
  const auto& list = Find(op, name).list().i();
  return {list.begin(), list.end()};
}

const std::string& Text(const OpView& op, const char* name) { return Find(op, name).s(); }

std::optional<int64_t> ConstantAxis(const OpView& op, int input, const Dims& of) {
  const auto axis = op.constant(input);
  if (!axis || axis->size() != 1 || !of) return std::nullopt;
  return axis->front() < 0 ? axis->front() + static_cast<int64_t>(of->size()) : axis->front();
}

}  // namespace tfswap
