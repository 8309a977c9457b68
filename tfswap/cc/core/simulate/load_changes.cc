#include "core/simulate/load_changes.h"

#include <algorithm>
#include <cstddef>
#include <tuple>

namespace tfswap {

std::vector<LoadChange> LoadChanges(const Timeline& timeline, const SimResult& result) {
  const std::vector<Bytes>& bytes = timeline.data().buffer_bytes;
  std::vector<LoadChange> changes;
  changes.reserve(2 * bytes.size() + result.swap_changes.size());
  auto by_swap = result.swap_changes.begin();
  auto shift = result.shifts.begin();
  Nanoseconds shift_ns = 0;
  const auto num_events = static_cast<int32_t>(timeline.events().size());
  for (int32_t position = 0; position < num_events; ++position) {
    for (; by_swap != result.swap_changes.end() && by_swap->events <= position; ++by_swap) {
      changes.push_back(by_swap->change);
    }
    for (; shift != result.shifts.end() && shift->position <= position; ++shift) {
      shift_ns = shift->ns;
    }
    const Timeline::Event& event = timeline.events()[position];
    if (event.kind == Timeline::EventKind::kAlloc) {
      changes.push_back({event.time_ns + shift_ns, event.index, bytes[event.index]});
    } else if (event.kind == Timeline::EventKind::kFree) {
      changes.push_back({event.time_ns + shift_ns, event.index, -bytes[event.index]});
    }
  }
  for (; by_swap != result.swap_changes.end(); ++by_swap) changes.push_back(by_swap->change);
  return changes;
}

std::vector<std::pair<int32_t, Bytes>> PeakHolders(const Timeline& timeline,
                                                   const SimResult& result) {
  constexpr size_t kMaxHolders = 5;
  const std::vector<Bytes>& bytes = timeline.data().buffer_bytes;
  std::vector<Bytes> held(bytes.size(), 0);
  for (int32_t position = 0; position < result.peak_events; ++position) {
    const Timeline::Event& event = timeline.events()[position];
    if (event.kind == Timeline::EventKind::kAlloc) held[event.index] += bytes[event.index];
    if (event.kind == Timeline::EventKind::kFree) held[event.index] -= bytes[event.index];
  }
  for (size_t i = 0; i < result.peak_changes; ++i) {
    const LoadChange& change = result.swap_changes[i].change;
    held[change.buffer] += change.delta;
  }
  std::vector<std::pair<int32_t, Bytes>> holders;
  for (size_t buffer = 0; buffer < held.size(); ++buffer) {
    if (held[buffer] > 0) holders.emplace_back(static_cast<int32_t>(buffer), held[buffer]);
  }
  const size_t kept = std::min(kMaxHolders, holders.size());
  std::partial_sort(holders.begin(), holders.begin() + static_cast<std::ptrdiff_t>(kept),
                    holders.end(), [](const auto& a, const auto& b) {
                      return std::tie(b.second, a.first) < std::tie(a.second, b.first);
                    });
  holders.resize(kept);
  return holders;
}

}  // namespace tfswap
