// All packers together: a packing as low as they find it, and whether it is the lowest.

#ifndef TFSWAP_CC_PACKING_PACK_H_
#define TFSWAP_CC_PACKING_PACK_H_

#include <atomic>
#include <cstdint>
#include <vector>

#include "packing/exact.h"
#include "packing/problem.h"

namespace tfswap::packing {

struct PackOptions {
  double seconds = 1.0;
  // Heights that are good enough, ascending; empty: only the lowest is. The first is tried for
  // longest.
  std::vector<int64_t> capacities;
  ExactRules rules;
  uint64_t seed = 1;
  const std::atomic<bool>* cancelled = nullptr;
};

struct Packed {
  Packing packing;
  int64_t max_live = 0;
  // No packing is lower than this: the largest load, or more where the exact solver proved it.
  int64_t lower_bound = 0;
  int64_t nodes = 0;
};

// Fits in several orders, then the exact solver, local search and the exact solver again at heights
// between what is known to be possible and what may be.
Packed Pack(const Problem& problem, const PackOptions& options);

}  // namespace tfswap::packing

#endif  // TFSWAP_CC_PACKING_PACK_H_
