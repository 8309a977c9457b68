// Whether a packing is one: apart from the packers, simple, and quadratic on purpose.

#ifndef TFSWAP_CC_PACKING_VALIDATOR_H_
#define TFSWAP_CC_PACKING_VALIDATOR_H_

#include <string>

#include "packing/problem.h"

namespace tfswap::packing {

// Empty if every buffer is where it may be, and no two that are live together share an address;
// otherwise the first fault, in words.
std::string FindFault(const Problem& problem, const Packing& packing);

}  // namespace tfswap::packing

#endif  // TFSWAP_CC_PACKING_VALIDATOR_H_
