#include "grappler/index/graph_description.h"

#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/types.h"

namespace tfswap {

std::string Describe(const GraphIndex& index) {
  const GraphIndex settled = index.WithoutRaces();
  std::string text;
  for (int n = 0; n < index.size(); ++n) {
    const tensorflow::NodeDef& node = index.node(n);
    absl::StrAppend(&text, node.name(), "\t", node.op(), "\t", index.context(n), "\t",
                    settled.IsGateable(n) ? "g" : "", index.IsAlias(n) ? "a" : "",
                    settled.IsSwappableProducer(n) ? "p" : "", index.IsRewirable(n) ? "r" : "",
                    index.IsRacing(n) ? "s" : "", settled.IsOrderable(n) ? "o" : "",
                    index.IsUpdate(n) ? "u" : "", index.IsBackward(n) ? "b" : "",
                    settled.IsRepeatable(n) ? "d" : "", "\t");
    for (int port = 0; port < index.outputs(n); ++port) {
      const bool plain = tensorflow::DataTypeCanUseMemcpy(index.OutputType({n, port}));
      text += !plain || !index.InDeviceMemory({n, port}) ? '0'
              : index.IsActivation({n, port})            ? '2'
                                                         : '1';
    }
    for (size_t i = 0; i < index.inputs(n).size(); ++i) {
      const TensorId& input = index.inputs(n)[i];
      const std::string& name = index.node(input.node).name();
      if (index.ReadsShape(n, static_cast<int>(i))) {
        absl::StrAppend(&text, "\t^", name);
      } else {
        absl::StrAppend(&text, "\t", name, ":", input.port);
      }
    }
    for (int input : index.control_inputs(n)) {
      absl::StrAppend(&text, "\t^", index.node(input).name());
    }
    text += '\n';
    if (index.Twin(n) >= 0) {
      absl::StrAppend(&text, "#twin\t", node.name(), "\t", index.node(index.Twin(n)).name(), "\n");
    }
  }
  return text;
}

}  // namespace tfswap
