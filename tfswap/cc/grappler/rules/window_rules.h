#ifndef TFSWAP_CC_GRAPPLER_RULES_WINDOW_RULES_H_
#define TFSWAP_CC_GRAPPLER_RULES_WINDOW_RULES_H_

#include <optional>

#include "grappler/sections/split_rule.h"

namespace tfswap {

// Rules for rows (row_rules.h) of the ops that slide a window over images: convolutions, poolings,
// and their gradients.

// Return whether the op has a window.
bool HasWindow(const OpView& op);
// Return how to compute the op on parts of images; no value if that is impossible.
std::optional<SplitRule> SplitWindow(const OpView& op);

}  // namespace tfswap

#endif  // TFSWAP_CC_GRAPPLER_RULES_WINDOW_RULES_H_
