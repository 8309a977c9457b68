#ifndef TFSWAP_CC_GRAPPLER_INDEX_INPUT_NAMES_H_
#define TFSWAP_CC_GRAPPLER_INDEX_INPUT_NAMES_H_

#include <string>

#include "tensorflow/core/graph/tensor_id.h"

namespace tfswap {

// Return the name of the node that an input of a NodeDef names: "a" for "a:1" and "^a".
inline std::string NodeOf(const std::string& input) {
  return std::string(tensorflow::ParseTensorName(input).node());
}

inline bool IsControl(const std::string& input) { return !input.empty() && input[0] == '^'; }

}  // namespace tfswap

#endif  // TFSWAP_CC_GRAPPLER_INDEX_INPUT_NAMES_H_
