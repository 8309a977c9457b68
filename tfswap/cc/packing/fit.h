// Packers that place one buffer after the other.

#ifndef TFSWAP_CC_PACKING_FIT_H_
#define TFSWAP_CC_PACKING_FIT_H_

#include <vector>

#include "packing/problem.h"

namespace tfswap::packing {

enum class Fit {
  kFirst,  // the lowest hole that is large enough
  kBest,   // the smallest hole that is large enough
};

// Places the buffers in that order; those with fixed offsets are there from the first on. Above
// all that are in the way, where no hole is large enough.
Packing Place(const Problem& problem, const std::vector<std::vector<int32_t>>& neighbours,
              const std::vector<int32_t>& order, Fit fit);

// The colouring of SmartPool (arXiv 1903.06631, section IV): large buffers first, of equal ones the
// earlier first.
Packing PlaceBySize(const Problem& problem, Fit fit);

}  // namespace tfswap::packing

#endif  // TFSWAP_CC_PACKING_FIT_H_
