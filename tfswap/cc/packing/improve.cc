#include "packing/improve.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>
#include <random>

#include "packing/fit.h"

namespace tfswap::packing {

namespace {

using Clock = std::chrono::steady_clock;
using Order = std::vector<int32_t>;

template <typename Weight>
Order HeaviestFirst(const Problem& problem, Weight weight) {
  Order order(problem.buffers.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    const double first = weight(problem.buffers[a]);
    const double second = weight(problem.buffers[b]);
    if (first != second) return first > second;
    return problem.buffers[a].lower < problem.buffers[b].lower;
  });
  return order;
}

// By offset: first fit in this order places no buffer higher than before.
Order ByOffset(const Packing& packing) {
  Order order(packing.offsets.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int32_t a, int32_t b) { return packing.offsets[a] < packing.offsets[b]; });
  return order;
}

// The bytes above the target height, which distinguishes packings of equal height.
double Excess(const Problem& problem, const Packing& packing, int64_t target) {
  double sum = 0;
  for (size_t b = 0; b < packing.offsets.size(); ++b) {
    const int64_t over = packing.offsets[b] + problem.buffers[b].size - target;
    if (over > 0) sum += static_cast<double>(over);
  }
  return sum;
}

}  // namespace

Packing PlaceInSeveralOrders(const Problem& problem) {
  const auto neighbours = Neighbours(problem);
  const auto life = [](const Buffer& b) { return static_cast<double>(b.upper - b.lower); };
  const std::vector<Order> orders = {
      HeaviestFirst(problem, [](const Buffer& b) { return static_cast<double>(b.size); }),
      HeaviestFirst(problem,
                    [&](const Buffer& b) { return static_cast<double>(b.size) * life(b); }),
      HeaviestFirst(problem, life),
      HeaviestFirst(problem, [](const Buffer& b) { return -static_cast<double>(b.lower); }),
  };
  Packing best;
  bool first = true;
  for (const Order& order : orders) {
    for (const Fit fit : {Fit::kBest, Fit::kFirst}) {
      Packing packing = Place(problem, neighbours, order, fit);
      if (first || packing.height < best.height) best = std::move(packing);
      first = false;
    }
  }
  return best;
}

Packing Improve(const Problem& problem, const Packing& start, const ImproveOptions& options) {
  const auto neighbours = Neighbours(problem);
  const auto deadline = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                           std::chrono::duration<double>(options.seconds));
  const int64_t target = std::max(options.enough, MaxLive(problem));
  std::mt19937_64 random(options.seed);
  Packing best = start;
  Packing current = start;
  double excess = Excess(problem, current, target);
  while (best.height > target && Clock::now() < deadline &&
         (options.cancelled == nullptr || !options.cancelled->load())) {
    Order order = ByOffset(current);
    std::vector<size_t> place(order.size());
    for (size_t i = 0; i < order.size(); ++i) place[order[i]] = i;
    std::vector<int32_t> high;
    for (size_t b = 0; b < current.offsets.size(); ++b) {
      if (current.offsets[b] + problem.buffers[b].size > target &&
          !problem.buffers[b].fixed.has_value()) {
        high.push_back(static_cast<int32_t>(b));
      }
    }
    if (high.empty()) break;  // only fixed buffers are too high
    // Move a buffer that ends too high before a conflicting one; several moves, so that groups can
    // move.
    const int moves = 1 + static_cast<int>(random() % 3);
    for (int i = 0; i < moves; ++i) {
      const int32_t b = high[random() % high.size()];
      const auto& in_the_way = neighbours[b];
      const size_t from = place[b];
      size_t to = random() % (from + 1);
      if (!in_the_way.empty() && random() % 4 != 0) {
        to = std::min(from, place[in_the_way[random() % in_the_way.size()]]);
      }
      std::rotate(order.begin() + static_cast<int64_t>(to),
                  order.begin() + static_cast<int64_t>(from),
                  order.begin() + static_cast<int64_t>(from) + 1);
      for (size_t j = to; j <= from; ++j) place[order[j]] = j;
    }
    Packing next = Place(problem, neighbours, order, Fit::kFirst);
    const double next_excess = Excess(problem, next, target);
    // Accept a worse packing sometimes, to leave local minima.
    const bool taken = next_excess <= excess || random() % 200 == 0;
    if (next.height < best.height) best = next;
    if (taken) {
      current = std::move(next);
      excess = next_excess;
    }
  }
  return best;
}

}  // namespace tfswap::packing
