#ifndef TFSWAP_CC_GRAPPLER_RULES_ROW_RULES_H_
#define TFSWAP_CC_GRAPPLER_RULES_ROW_RULES_H_

#include <optional>

#include "grappler/sections/split_rule.h"

namespace tfswap {

// Return how to compute an op on parts of images: `[batch, rows, columns, channels]` is split along
// the rows, and a reshaped image along the axis that holds them. No value if that is impossible or
// unknown.
//
// A window (of a convolution or a pooling) that extends beyond its part reads rows of the next
// parts:
//
//   input    |-- part 0 --|-- part 1 --|-- part 2 --|
//   read by           |----- 1 ------|                 rows that parts share are read twice
//   output   |-- part 0 --|-- part 1 --|-- part 2 --|
//
// Parts need not be equal, so an odd number of rows can be split.
//
// `output_cut` is the cut that all readers of the output use, if no input of the op is split.
std::optional<SplitRule> SplitByRows(const OpView& op, const std::optional<Cut>& output_cut);

}  // namespace tfswap

#endif  // TFSWAP_CC_GRAPPLER_RULES_ROW_RULES_H_
