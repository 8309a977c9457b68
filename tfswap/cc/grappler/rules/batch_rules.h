#ifndef TFSWAP_CC_GRAPPLER_RULES_BATCH_RULES_H_
#define TFSWAP_CC_GRAPPLER_RULES_BATCH_RULES_H_

#include <optional>

#include "grappler/sections/split_rule.h"

namespace tfswap {

// How an op can be computed on equal sections, one behind the other, of its inputs that are made
// from the batch; no value if it cannot, or if it is not known to be. A part is one of `count`
// equal contiguous pieces along axis 0: whether that axis is the batch does not matter to whether
// this is right, only to whether it is of use.
std::optional<SplitRule> SeparateByBatch(const OpView& op);

}  // namespace tfswap

#endif  // TFSWAP_CC_GRAPPLER_RULES_BATCH_RULES_H_
