// Local search for lower packings, for problems that the exact solver does not finish.

#ifndef TFSWAP_CC_PACKING_IMPROVE_H_
#define TFSWAP_CC_PACKING_IMPROVE_H_

#include <atomic>
#include <cstdint>

#include "packing/problem.h"

namespace tfswap::packing {

// Return the best of both fits over four orders: by size, by area, by lifetime, by start.
Packing PlaceInSeveralOrders(const Problem& problem);

struct ImproveOptions {
  double seconds = 1.0;
  int64_t enough = 0;  // stop at a packing of at most this height
  uint64_t seed = 1;
  const std::atomic<bool>* cancelled = nullptr;
};

// Search over the order of placement: buffers that end too high are moved before some that lie
// below them. Never worse than `start`.
Packing Improve(const Problem& problem, const Packing& start, const ImproveOptions& options);

}  // namespace tfswap::packing

#endif  // TFSWAP_CC_PACKING_IMPROVE_H_
