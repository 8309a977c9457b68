#ifndef TFSWAP_GRAPPLER_SECTION_RULES_H_
#define TFSWAP_GRAPPLER_SECTION_RULES_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "tensorflow/core/framework/node_def.pb.h"

namespace tfswap {

// Dimensions, -1 for one that is not known; no value: not even how many there are.
using Dims = std::optional<std::vector<int64_t>>;

// What an op's copy for one section of the batch gets for an input.
enum class Share {
  kWhole,  // all of it
  kPart,   // its part along axis 0
  kShape,  // a constant shape of what is cut: with a part of its first dimension
};

// What the copies' outputs are of the output of the op itself.
enum class Yield {
  kPart,  // its parts along axis 0
  kSum,   // summands of it
  kMean,  // what it is the mean of
};

// How an op can be computed section by section.
struct Separation {
  std::vector<Share> inputs;
  std::vector<Yield> outputs;
};

// An op as the rules see it.
struct OpView {
  const tensorflow::NodeDef* node;
  std::vector<Dims> inputs;
  std::vector<Dims> outputs;
  // Whether an input is made from the batch.
  std::vector<bool> batched;
  // The integers of an input that is a constant.
  std::function<std::optional<std::vector<int64_t>>(int input)> constant;
  // How many sections.
  int64_t count;
};

// How the op can be computed on equal sections, one behind the other, of its inputs that are made
// from the batch; no value if it cannot, or if it is not known to be. A part is one of `count`
// equal contiguous pieces along axis 0: whether that axis is the batch does not matter to whether
// this is right, only to whether it is of use.
std::optional<Separation> Separate(const OpView& op);

}  // namespace tfswap

#endif  // TFSWAP_GRAPPLER_SECTION_RULES_H_
