#ifndef TFSWAP_CC_GRAPPLER_RULES_WINDOW_RULES_H_
#define TFSWAP_CC_GRAPPLER_RULES_WINDOW_RULES_H_

#include <optional>

#include "grappler/sections/split_rule.h"

namespace tfswap {

// Rules for rows (row_rules.h) of what slides a window over images: convolutions, pools, and their
// gradients.

// Whether it is such an op.
bool HasWindow(const OpView& op);
// How it can be computed on parts of images; no value if it cannot.
std::optional<SplitRule> SeparateWindow(const OpView& op);

}  // namespace tfswap

#endif  // TFSWAP_CC_GRAPPLER_RULES_WINDOW_RULES_H_
