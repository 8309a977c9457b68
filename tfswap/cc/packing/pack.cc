#include "packing/pack.h"

#include <algorithm>
#include <chrono>

#include "packing/improve.h"

namespace tfswap::packing {

namespace {

using Clock = std::chrono::steady_clock;

// Parts of the time: of the exact solver at the height that is wanted, of the local search.
constexpr double kExactPart = 0.7;
constexpr double kSearchPart = 0.5;
// Between heights that differ by less there is nothing to gain.
constexpr int64_t kFinest = 10000;  // one part in

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

  // Tries to fit into a height; answers whether it is settled.
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

  std::vector<int64_t> wanted = options.capacities;
  if (wanted.empty()) wanted.push_back(best.lower_bound);
  for (const int64_t capacity : wanted) {
    if (good(capacity) || left() <= 0 || cancelled()) break;
    if (capacity < best.lower_bound) continue;
    solve(capacity, left() * kExactPart);
  }
  const int64_t least = std::max(wanted.front(), best.lower_bound);
  if (!good(least) && left() > 0 && !cancelled()) {
    ImproveOptions improve;
    improve.seconds = left() * kSearchPart;
    improve.enough = least;
    improve.seed = options.seed;
    improve.cancelled = options.cancelled;
    best.packing = Improve(problem, best.packing, improve);
  }
  // Halving what is open; the time with it.
  int64_t open = least;
  while (!good(least) && left() > 0 && !cancelled()) {
    const int64_t low = std::max(open, best.lower_bound);
    if (best.packing.height - low <= best.packing.height / kFinest) break;
    const int64_t height = low + (best.packing.height - low) / 2;
    if (!solve(height, left() / 3)) open = height;
  }
  return best;
}

}  // namespace tfswap::packing
