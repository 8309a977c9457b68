#include "grappler/index/pooling_gradients.h"

#include "absl/strings/str_cat.h"
#include "tensorflow/core/util/util.h"

namespace tfswap {

using ::tensorflow::NodeDef;

namespace {

// Whether oneDNN pools like that: not over examples or channels.
bool PoolsImages(const NodeDef& pooling) {
  const auto ends_are_one = [&](const char* name) {
    const auto found = pooling.attr().find(name);
    if (found == pooling.attr().end()) return false;
    const auto& sizes = found->second.list();
    return sizes.i_size() > 3 && sizes.i(0) == 1 && sizes.i(sizes.i_size() - 1) == 1;
  };
  const auto format = pooling.attr().find("data_format");
  return format != pooling.attr().end() &&
         (format->second.s() == "NHWC" || format->second.s() == "NDHWC") && ends_are_one("ksize") &&
         ends_are_one("strides");
}

}  // namespace

bool WillReadShape(const NodeDef& gradient, int input, const NodeDef& pooling) {
  if (input >= kPoolingShapes || !tensorflow::IsMKLEnabled()) return false;
  if (pooling.op() != "MaxPool" && pooling.op() != "MaxPool3D") return false;
  if (gradient.op() != absl::StrCat(pooling.op(), "Grad")) return false;
  const auto type = gradient.attr().find("T");
  return type != gradient.attr().end() && type->second.type() == tensorflow::DT_FLOAT &&
         PoolsImages(pooling) && PoolsImages(gradient);
}

}  // namespace tfswap
