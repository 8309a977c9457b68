// Greedy packers.

#ifndef TFSWAP_CC_PACKING_FIT_H_
#define TFSWAP_CC_PACKING_FIT_H_

#include <vector>

#include "packing/problem.h"

namespace tfswap::packing {

enum class Fit {
  kFirst,  // the lowest hole that is large enough
  kBest,   // the smallest hole that is large enough
};

// Place the buffers in the given order, above all conflicting ones if no hole is large enough.
// Buffers with fixed offsets are in place from the start.
Packing Place(const Problem& problem, const std::vector<std::vector<int32_t>>& neighbours,
              const std::vector<int32_t>& order, Fit fit);

// The weighted colouring of SmartPool (arXiv 1903.06631, section IV): larger buffers first, earlier
// ones first among equals.
Packing PlaceBySize(const Problem& problem, Fit fit);

}  // namespace tfswap::packing

#endif  // TFSWAP_CC_PACKING_FIT_H_
