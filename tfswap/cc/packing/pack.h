// All packers combined: the lowest packing they find and a lower bound.

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
  // Sufficient heights, ascending; empty: only the lowest one. The first one gets most of the time.
  std::vector<int64_t> capacities;
  ExactRules rules;
  uint64_t seed = 1;
  const std::atomic<bool>* cancelled = nullptr;
};

struct Packed {
  Packing packing;
  int64_t max_live = 0;
  // Lower bound on the height: the peak load, or more if the exact solver proved it.
  int64_t lower_bound = 0;
  int64_t nodes = 0;
};

// Greedy fits in several orders, then the exact solver, local search, and the exact solver again at
// heights between the lower bound and the best packing.
Packed Pack(const Problem& problem, const PackOptions& options);

}  // namespace tfswap::packing

#endif  // TFSWAP_CC_PACKING_PACK_H_
