#include "grappler/sections/row_parts.h"

#include <algorithm>
#include <string>

#include "grappler/index/op_attributes.h"

namespace tfswap {

bool IsKnown(const Dims& dims) {
  return dims && std::all_of(dims->begin(), dims->end(), [](int64_t extent) { return extent > 0; });
}

int64_t Product(const std::vector<int64_t>& dims, size_t begin, size_t end) {
  int64_t product = 1;
  for (size_t i = begin; i < end; ++i) product *= dims[i];
  return product;
}

InputPart PartsOf(const Cut& cut) {
  InputPart input{InputKind::kPart, cut.axis, {}, {}, {}};
  for (int64_t s = 0; s < cut.count(); ++s) input.pieces.push_back(cut.part(s));
  return input;
}

SplitRule MakeRule(const OpView& op, const Cut& cut) {
  SplitRule found;
  found.inputs.resize(op.inputs.size());
  found.outputs.assign(op.outputs.size(), OutputPart{OutputKind::kPart, cut});
  return found;
}

bool IsChannelsLast(const OpView& op) {
  const std::string& format = Text(op, "data_format");
  return format.empty() || format == "NHWC";
}

}  // namespace tfswap
