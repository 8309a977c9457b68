#ifndef TFSWAP_CC_GRAPPLER_RULES_ROW_RULES_H_
#define TFSWAP_CC_GRAPPLER_RULES_ROW_RULES_H_

#include <optional>

#include "grappler/sections/split_rule.h"

namespace tfswap {

// How an op can be computed on parts of images: of `[batch, rows, columns, channels]` along the
// rows, and of what such a tensor is reshaped to along what became of them. No value if it cannot,
// or if it is not known to be.
//
// A window (a convolution's, a pool's) that reaches beyond its part reads rows of the next parts:
//
//   input    |-- part 0 --|-- part 1 --|-- part 2 --|
//   read by           |----- 1 ------|                 rows that parts share are read twice
//   output   |-- part 0 --|-- part 1 --|-- part 2 --|
//
// Parts need not be equal: an odd number of rows is cut too.
//
// Args:
//   op: as it is seen.
//   wanted: where its output is cut by all that read it, if no input of it is cut.
std::optional<SplitRule> SeparateByRows(const OpView& op, const std::optional<Cut>& wanted);

}  // namespace tfswap

#endif  // TFSWAP_CC_GRAPPLER_RULES_ROW_RULES_H_
