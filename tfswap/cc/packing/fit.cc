#include "packing/fit.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace tfswap::packing {

namespace {

constexpr Offset kNowhere = -1;

Offset FindPlace(const Problem& problem, const std::vector<int32_t>& neighbours,
                 const std::vector<Offset>& offsets, const Buffer& buffer, Fit fit,
                 std::vector<std::pair<Offset, Offset>>* taken) {
  taken->clear();
  for (const int32_t other : neighbours) {
    if (offsets[other] != kNowhere && problem.buffers[other].size > 0) {
      taken->emplace_back(offsets[other], offsets[other] + problem.buffers[other].size);
    }
  }
  std::sort(taken->begin(), taken->end());
  Offset begin = 0;
  Offset best = kNowhere;
  int64_t best_room = std::numeric_limits<int64_t>::max();
  for (const auto& [lower, upper] : *taken) {
    const int64_t room = lower - begin;
    const Offset place = AlignUp(begin, buffer.alignment);
    if (place + buffer.size <= lower && room < best_room) {
      if (fit == Fit::kFirst) return place;
      best = place;
      best_room = room;
    }
    begin = std::max(begin, upper);
  }
  return best != kNowhere ? best : AlignUp(begin, buffer.alignment);
}

}  // namespace

Packing Place(const Problem& problem, const std::vector<std::vector<int32_t>>& neighbours,
              const std::vector<int32_t>& order, Fit fit) {
  Packing packing;
  packing.offsets.assign(problem.buffers.size(), kNowhere);
  for (size_t b = 0; b < problem.buffers.size(); ++b) {
    if (problem.buffers[b].fixed.has_value()) packing.offsets[b] = *problem.buffers[b].fixed;
  }
  std::vector<std::pair<Offset, Offset>> taken;
  for (const int32_t b : order) {
    if (packing.offsets[b] != kNowhere) continue;
    packing.offsets[b] =
        FindPlace(problem, neighbours[b], packing.offsets, problem.buffers[b], fit, &taken);
  }
  packing.height = Height(problem, packing.offsets);
  return packing;
}

Packing PlaceBySize(const Problem& problem, Fit fit) {
  std::vector<int32_t> order(problem.buffers.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    const Buffer& x = problem.buffers[a];
    const Buffer& y = problem.buffers[b];
    return x.size != y.size ? x.size > y.size : x.lower < y.lower;
  });
  return Place(problem, Neighbours(problem), order, fit);
}

}  // namespace tfswap::packing
