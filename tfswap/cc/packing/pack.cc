#include "packing/pack.h"

#include <algorithm>
#include <chrono>

#include "packing/improve.h"

namespace tfswap::packing {

namespace {

using Clock = std::chrono::steady_clock;

// Shares of the time for the exact solver at the target height and for the local search.
constexpr double kExactPart = 0.7;
constexpr double kSearchPart = 0.5;
// Stop at a gap of this fraction of the height.
constexpr int64_t kMaxResolution = 10000;  // inverse of the fraction

}  // namespace

Packed Pack(const Problem& problem, const PackOptions& options) {
  const auto begun = Clock::now();
  const auto left = [&] {
    return options.seconds - std::chrono::duration<double>(Clock::now() - begun).count();
  };
  const auto cancelled = [&] { return options.cancelled != nullptr && options.cancelled->load(); };
  Packed best;
  best.max_live = best.lower_bound = MaxLive(problem);
  best.packing = PlaceInSeveralOrders(problem);

  // Run the exact solver for a height; return whether it gave an answer.
  const auto solve = [&](int64_t height, double seconds) {
    ExactOptions exact;
    exact.seconds = seconds;
    exact.rules = options.rules;
    exact.seed = options.seed;
    exact.cancelled = options.cancelled;
    ExactAnswer answer = SolveExactly(problem, height, exact);
    best.nodes += answer.nodes;
    if (answer.outcome == Outcome::kSolved) best.packing = std::move(answer.packing);
    if (answer.outcome == Outcome::kImpossible) {
      best.lower_bound = std::max(best.lower_bound, height + 1);
    }
    return answer.outcome != Outcome::kOutOfTime;
  };
  const auto good = [&](int64_t height) {
    return best.packing.height <= std::max(height, best.lower_bound);
  };

  std::vector<int64_t> targets = options.capacities;
  if (targets.empty()) targets.push_back(best.lower_bound);
  for (const int64_t capacity : targets) {
    if (good(capacity) || left() <= 0 || cancelled()) break;
    if (capacity < best.lower_bound) continue;
    solve(capacity, left() * kExactPart);
  }
  const int64_t least = std::max(targets.front(), best.lower_bound);
  if (!good(least) && left() > 0 && !cancelled()) {
    ImproveOptions improve;
    improve.seconds = left() * kSearchPart;
    improve.enough = least;
    improve.seed = options.seed;
    improve.cancelled = options.cancelled;
    best.packing = Improve(problem, best.packing, improve);
  }
  // Bisect the remaining gap.
  int64_t open = least;
  while (!good(least) && left() > 0 && !cancelled()) {
    const int64_t low = std::max(open, best.lower_bound);
    if (best.packing.height - low <= best.packing.height / kMaxResolution) break;
    const int64_t height = low + (best.packing.height - low) / 2;
    if (!solve(height, left() / 3)) open = height;
  }
  return best;
}

}  // namespace tfswap::packing
