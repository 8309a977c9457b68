#ifndef TFSWAP_CC_GRAPPLER_SECTIONS_ROW_PARTS_H_
#define TFSWAP_CC_GRAPPLER_SECTIONS_ROW_PARTS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "grappler/sections/split_rule.h"

namespace tfswap {

// What rules for rows are made of.

// Whether all extents are known, and there is something.
bool IsKnown(const Dims& dims);
// Of the extents [begin, end).
int64_t Product(const std::vector<int64_t>& dims, size_t begin, size_t end);
// The parts of what is cut, one a section.
InputPart PartsOf(const Cut& cut);
// Nothing of the inputs; all outputs are parts.
SplitRule Begun(const OpView& op, const Cut& cut);
// Whether images are [batch, rows, columns, channels], as far as the op cares.
bool IsChannelsLast(const OpView& op);

}  // namespace tfswap

#endif  // TFSWAP_CC_GRAPPLER_SECTIONS_ROW_PARTS_H_
