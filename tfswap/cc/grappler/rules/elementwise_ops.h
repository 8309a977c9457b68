#ifndef TFSWAP_CC_GRAPPLER_RULES_ELEMENTWISE_OPS_H_
#define TFSWAP_CC_GRAPPLER_RULES_ELEMENTWISE_OPS_H_

#include <string>
#include <vector>

namespace tfswap {

// Ops that compute each output element from the input elements at the same place, with
// broadcasting.
const std::vector<std::string>& ElementwiseOps();

}  // namespace tfswap

#endif  // TFSWAP_CC_GRAPPLER_RULES_ELEMENTWISE_OPS_H_
