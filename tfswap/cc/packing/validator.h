// Validates packings: independent of the packers, simple, and quadratic on purpose.

#ifndef TFSWAP_CC_PACKING_VALIDATOR_H_
#define TFSWAP_CC_PACKING_VALIDATOR_H_

#include <string>

#include "packing/problem.h"

namespace tfswap::packing {

// Return "" if every buffer has a valid offset and no two that are live together share an address;
// otherwise a description of the first error.
std::string FindFault(const Problem& problem, const Packing& packing);

}  // namespace tfswap::packing

#endif  // TFSWAP_CC_PACKING_VALIDATOR_H_
