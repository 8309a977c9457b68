// Lower packings by search: what to use where the exact solver does not come to an end.

#ifndef TFSWAP_CC_PACKING_IMPROVE_H_
#define TFSWAP_CC_PACKING_IMPROVE_H_

#include <atomic>
#include <cstdint>

#include "packing/problem.h"

namespace tfswap::packing {

// The best of both fits over four orders: by size, by area, by life, by begin.
Packing PlaceInSeveralOrders(const Problem& problem);

struct ImproveOptions {
  double seconds = 1.0;
  int64_t enough = 0;  // stop at a packing of at most this height
  uint64_t seed = 1;
  const std::atomic<bool>* cancelled = nullptr;
};

// Local search over the order in which buffers are placed: those that end too high go before some
// that lie below them. Never worse than `start`.
Packing Improve(const Problem& problem, const Packing& start, const ImproveOptions& options);

}  // namespace tfswap::packing

#endif  // TFSWAP_CC_PACKING_IMPROVE_H_
