#ifndef TFSWAP_CC_GRAPPLER_RULES_ELEMENTWISE_OPS_H_
#define TFSWAP_CC_GRAPPLER_RULES_ELEMENTWISE_OPS_H_

#include <string>
#include <vector>

namespace tfswap {

// Ops that compute each element of their outputs from the elements of their inputs at its place,
// inputs being broadcast.
const std::vector<std::string>& ElementwiseOps();

}  // namespace tfswap

#endif  // TFSWAP_CC_GRAPPLER_RULES_ELEMENTWISE_OPS_H_
