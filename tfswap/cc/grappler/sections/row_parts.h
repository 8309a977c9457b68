#ifndef TFSWAP_CC_GRAPPLER_SECTIONS_ROW_PARTS_H_
#define TFSWAP_CC_GRAPPLER_SECTIONS_ROW_PARTS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "grappler/sections/split_rule.h"

namespace tfswap {

// Building blocks of the rules for rows.

// Return whether all dimensions are known and positive.
bool IsKnown(const Dims& dims);
// The product of the dimensions [begin, end).
int64_t Product(const std::vector<int64_t>& dims, size_t begin, size_t end);
// An input of which each section reads its part.
InputPart PartsOf(const Cut& cut);
// A rule by which the op reads all of its inputs and all outputs are parts.
SplitRule MakeRule(const OpView& op, const Cut& cut);
// Return whether images are [batch, rows, columns, channels].
bool IsChannelsLast(const OpView& op);

}  // namespace tfswap

#endif  // TFSWAP_CC_GRAPPLER_SECTIONS_ROW_PARTS_H_
