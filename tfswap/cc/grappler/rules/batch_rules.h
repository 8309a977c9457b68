#ifndef TFSWAP_CC_GRAPPLER_RULES_BATCH_RULES_H_
#define TFSWAP_CC_GRAPPLER_RULES_BATCH_RULES_H_

#include <optional>

#include "grappler/sections/split_rule.h"

namespace tfswap {

// Return how to compute an op on equal sections of its inputs that depend on the batch; no value if
// that is impossible or unknown. A part is one of `count` equal contiguous pieces along axis 0. The
// result is correct whether or not that axis is the batch.
std::optional<SplitRule> SplitByBatch(const OpView& op);

}  // namespace tfswap

#endif  // TFSWAP_CC_GRAPPLER_RULES_BATCH_RULES_H_
