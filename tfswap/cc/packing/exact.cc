#include "packing/exact.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <functional>
#include <numeric>
#include <random>
#include <tuple>
#include <unordered_set>
#include <utility>

namespace tfswap::packing {

namespace {

using Clock = std::chrono::steady_clock;

// A 128-bit key as two independently mixed halves.
struct Key {
  uint64_t a = 0;
  uint64_t b = 0;
  bool operator==(const Key& other) const { return a == other.a && b == other.b; }
};
struct KeyHash {
  size_t operator()(const Key& key) const { return key.a; }
};

uint64_t Mix(uint64_t x) {  // splitmix64
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

constexpr Offset kOpen = -1;
constexpr Offset kNever = std::numeric_limits<Offset>::max() / 4;
constexpr int64_t kEasyNodes = 1500;           // limit of the first tries, one per order
constexpr int64_t kFirstNodes = 200;           // initial limit of later tries
constexpr double kGrowth = 1.1;                // of the limit, per round of orders
constexpr double kNoise = 1.2;                 // factor by which an order is perturbed
constexpr size_t kMaxFailedStates = 20000000;  // half a GiB of hashes
constexpr int64_t kNodesPerClockCheck = 64;

// Bottom-up search. A state holds which buffers are placed, and for each other buffer
//
//  top   where it would rest now: on the highest placed buffer that it overlaps, or at offset 0
//  low   a lower bound of its offset in all remaining solutions; top <= low
//
// A buffer with low == top is *open*: it can be placed at top. Any solution can be pushed down
// until each buffer rests on another one or at offset 0, and is then the sequence of its placements
// sorted by (offset, rank). The search enumerates these sequences. A buffer that was tried as the
// next one and failed, or whose top is below the current offset of the sequence, is closed: it will
// rest on a neighbour that is not placed yet (the rule `support`).
class Search {
 public:
  Search(const Problem& problem, int64_t capacity, const ExactOptions& options)
      : problem_(problem), capacity_(capacity), options_(options), rules_(options.rules) {
    const size_t count = problem.buffers.size();
    neighbours_ = Neighbours(problem);
    for (const Buffer& buffer : problem.buffers) {
      size_.push_back(buffer.size);
      alignment_.push_back(buffer.alignment);
      fixed_.push_back(buffer.fixed.value_or(-1));
    }
    deadline_ = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                   std::chrono::duration<double>(options.seconds));
    state_.resize(count);
    offsets_.assign(count, 0);
    rank_.resize(count);
    support_.assign(count, kOpen);
    FindLiveSets();
    live_set_marked_.assign(live_sets_.size(), 0);
    live_set_weight_.assign(live_sets_.size(), 1);
  }

  ExactAnswer Run() {
    ExactAnswer answer;
    std::mt19937_64 random(options_.seed);
    std::vector<int32_t> all;
    for (size_t b = 0; b < problem_.buffers.size(); ++b) all.push_back(static_cast<int32_t>(b));
    std::sort(all.begin(), all.end(), [&](int32_t a, int32_t b) {
      return problem_.buffers[a].lower < problem_.buffers[b].lower;
    });
    // Many short tries with different tie-breaking orders; failed states are remembered across
    // tries.
    double limit = kFirstNodes;
    for (int round = 0;; ++round) {
      Rank(round, &random);
      if (!Start(all)) {
        answer.outcome = Outcome::kImpossible;
        break;
      }
      // Easy problems are solved sooner without the most expensive rule.
      const bool first = round < kOrders;
      thorough_ = rules_.not_first && !first;
      nodes_left_ = first ? kEasyNodes : static_cast<int64_t>(limit);
      stopped_ = false;
      const bool solved = SolveParts(all, 0);
      if (solved) {
        answer.outcome = Outcome::kSolved;
        answer.packing.offsets = offsets_;
        answer.packing.height = Height(problem_, offsets_);
        break;
      }
      if (!stopped_) {
        answer.outcome = Outcome::kImpossible;
        break;
      }
      if (out_of_time_) break;
      if (!first && round % kOrders == kOrders - 1) limit *= kGrowth;
    }
    answer.nodes = nodes_;
    return answer;
  }

 private:
  struct State {
    Offset top = 0;
    Offset low = 0;
    Offset rejected_top = -1;  // top at which it was tried without success
    bool placed = false;
  };
  struct Change {
    int32_t buffer;
    State before;
  };
  // A maximal set of buffers that are live at the same time.
  using LiveSet = std::vector<int32_t>;

  static constexpr int kOrders = 4;

  void FindLiveSets() {
    // Just before the end of a buffer, if another one started since the previous end.
    std::vector<std::tuple<Time, bool, int32_t>> events;
    for (size_t b = 0; b < problem_.buffers.size(); ++b) {
      const Buffer& buffer = problem_.buffers[b];
      const auto i = static_cast<int32_t>(b);
      Time lower = buffer.lower;
      const auto piece = [&](Time from, Time to) {
        if (from >= to) return;
        events.emplace_back(from, true, i);
        events.emplace_back(to, false, i);
      };
      for (const Gap& gap : buffer.gaps) {
        piece(lower, gap.lower);
        lower = gap.upper;
      }
      piece(lower, buffer.upper);
    }
    std::sort(events.begin(), events.end());
    live_sets_of_.resize(problem_.buffers.size());
    LiveSet live;
    bool grown = false;
    for (const auto& [time, begins, b] : events) {
      if (begins) {
        live.push_back(b);
        grown = true;
        continue;
      }
      if (grown) {
        for (const int32_t other : live) {
          live_sets_of_[other].push_back(static_cast<int32_t>(live_sets_.size()));
        }
        live_sets_.push_back(live);
        grown = false;
      }
      live.erase(std::find(live.begin(), live.end(), b));
    }
    max_live_.assign(problem_.buffers.size(), 0);
    for (const LiveSet& live_set : live_sets_) {
      int64_t sum = 0;
      for (const int32_t b : live_set) sum += problem_.buffers[b].size;
      for (const int32_t b : live_set) max_live_[b] = std::max(max_live_[b], sum);
    }
  }

  // Choose the tie-breaking order of buffers that could rest at the same offset.
  void Rank(int round, std::mt19937_64* random) {
    const auto width = [&](int32_t b) {
      return static_cast<double>(problem_.buffers[b].upper - problem_.buffers[b].lower);
    };
    const auto size = [&](int32_t b) { return static_cast<double>(problem_.buffers[b].size); };
    const auto live = [&](int32_t b) { return static_cast<double>(max_live_[b]); };
    std::vector<double> weight(rank_.size(), 0);
    for (size_t m = 0; m < live_sets_.size(); ++m) {
      for (const int32_t b : live_sets_[m]) weight[b] += live_set_weight_[m];
    }
    std::vector<std::tuple<double, double, double, int32_t>> keys;
    for (size_t i = 0; i < rank_.size(); ++i) {
      const auto b = static_cast<int32_t>(i);
      if (round >= kOrders) {
        // Prefer buffers of the live sets in which tries failed.
        const double noise = std::uniform_real_distribution<double>(1 / kNoise, kNoise)(*random);
        keys.emplace_back(-weight[b] * (round % 2 == 0 ? 1.0 : size(b)) * noise, -live(b),
                          -width(b), b);
        continue;
      }
      switch (round % kOrders) {
        case 0:
          keys.emplace_back(-width(b), -size(b) * width(b), -live(b), b);
          break;
        case 1:
          keys.emplace_back(-live(b), -size(b) * width(b), -width(b), b);
          break;
        case 2:
          keys.emplace_back(-live(b), -width(b), -size(b), b);
          break;
        default:
          keys.emplace_back(-size(b) * width(b), -live(b), -width(b), b);
          break;
      }
    }
    std::sort(keys.begin(), keys.end());
    for (size_t place = 0; place < keys.size(); ++place) {
      rank_[std::get<3>(keys[place])] = static_cast<int32_t>(place);
    }
  }

  // Reset to the state without placed buffers; return false if it is infeasible.
  bool Start(const std::vector<int32_t>& all) {
    trail_.clear();
    std::fill(state_.begin(), state_.end(), State());
    for (const int32_t b : all) {
      const Buffer& buffer = problem_.buffers[b];
      if (buffer.fixed.has_value()) state_[b].low = *buffer.fixed;
      if (state_[b].low + buffer.size > capacity_) return false;
    }
    left_.assign(live_sets_.size(), 0);
    for (size_t m = 0; m < live_sets_.size(); ++m) {
      for (const int32_t b : live_sets_[m]) left_[m] += size_[b];
    }
    for (size_t m = 0; m < live_sets_.size(); ++m) {
      if (!LiveSetFits(static_cast<int32_t>(m))) return false;
    }
    return true;
  }

  bool IsFixed(int32_t b) const { return fixed_[b] >= 0; }

  bool IsOpen(int32_t b) const {
    const State& state = state_[b];
    if (IsFixed(b)) return true;
    return state.low == state.top && state.rejected_top != state.top;
  }

  // The offset at which it would be placed next.
  Offset NextOffset(int32_t b) const { return IsFixed(b) ? fixed_[b] : state_[b].top; }

  void SaveState(int32_t b) { trail_.push_back({b, state_[b]}); }

  void Undo(size_t mark) {
    while (trail_.size() > mark) {
      const int32_t b = trail_.back().buffer;
      if (state_[b].placed && !trail_.back().before.placed) {
        for (const int32_t m : live_sets_of_[b]) left_[m] += size_[b];
      }
      state_[b] = trail_.back().before;
      trail_.pop_back();
    }
  }

  bool OutOfTime() {
    if (nodes_ % kNodesPerClockCheck == 0) {
      out_of_time_ |=
          Clock::now() > deadline_ || (options_.cancelled != nullptr && options_.cancelled->load());
    }
    return out_of_time_;
  }

  // Solve the remaining buffers in independent parts, which share no time. `floor` is the current
  // offset of the sequence.
  bool SolveParts(const std::vector<int32_t>& left, Offset floor) {
    if (!rules_.decomposition) return left.empty() || Solve(left, floor);
    // Sorted by start; a part ends where the next buffer starts after all previous ones have ended.
    size_t begin = 0;
    std::vector<std::pair<size_t, size_t>> parts;
    Time upper = std::numeric_limits<Time>::min();
    for (size_t i = 0; i < left.size(); ++i) {
      const Buffer& buffer = problem_.buffers[left[i]];
      if (i > begin && buffer.lower >= upper) {
        parts.emplace_back(begin, i);
        begin = i;
      }
      upper = i == begin ? buffer.upper : std::max(upper, buffer.upper);
    }
    if (begin < left.size()) parts.emplace_back(begin, left.size());
    // Small parts first: they fail fast.
    std::sort(parts.begin(), parts.end(),
              [](const auto& a, const auto& b) { return a.second - a.first < b.second - b.first; });
    for (const auto& [from, to] : parts) {
      if (!Solve(std::vector<int32_t>(left.begin() + static_cast<int64_t>(from),
                                      left.begin() + static_cast<int64_t>(to)),
                 floor)) {
        return false;
      }
    }
    return true;
  }

  bool Solve(const std::vector<int32_t>& left, Offset floor) {
    ++nodes_;
    if (OutOfTime() || --nodes_left_ < 0) {
      stopped_ = true;
      return false;
    }
    Key key;
    if (rules_.memory) {
      for (const int32_t b : left) {
        const uint64_t mixed = Mix(Mix(static_cast<uint64_t>(b)) ^
                                   static_cast<uint64_t>(std::max(state_[b].low, floor)));
        key.a += mixed;
        key.b += Mix(mixed ^ 0x6a09e667f3bcc908);
      }
      if (failed_.count(key) != 0) return false;
    }
    const bool solved = Branch(left, floor);
    if (!solved && !stopped_ && rules_.memory && failed_.size() < kMaxFailedStates)
      failed_.insert(key);
    return solved;
  }

  bool Branch(const std::vector<int32_t>& left, Offset floor) {
    const size_t mark = trail_.size();
    // No remaining buffer may start above the lowest end: there would be space below it.
    Offset lowest_end = kNever;
    for (const int32_t b : left) {
      lowest_end = std::min(lowest_end, NextOffset(b) + size_[b]);
    }
    std::vector<std::tuple<Offset, int32_t, int32_t>> candidates;
    for (const int32_t b : left) {
      const Offset place = NextOffset(b);
      if (place < floor || !IsOpen(b) || state_[b].top > place) continue;
      if (rules_.dominance && place >= lowest_end && size_[b] > 0) continue;
      candidates.emplace_back(place, rank_[b], b);
    }
    std::sort(candidates.begin(), candidates.end());
    std::vector<int32_t> rest(left.size() - 1);
    for (const auto& [place, rank, b] : candidates) {
      const size_t inner = trail_.size();
      if (PlaceBuffer(b, place, left)) {
        std::copy_if(left.begin(), left.end(), rest.begin(), [b = b](int32_t o) { return o != b; });
        offsets_[b] = place;
        if (SolveParts(rest, place)) return true;
      }
      Undo(inner);
      if (stopped_) break;
      if (!Skip(b, place, left)) break;
    }
    Undo(mark);
    return false;
  }

  // Place `b` and propagate the bounds of the other buffers; return false if that is infeasible.
  bool PlaceBuffer(int32_t b, Offset place, const std::vector<int32_t>& left) {
    SaveState(b);
    state_[b].placed = true;
    for (const int32_t m : live_sets_of_[b]) left_[m] -= size_[b];
    state_[b].low = place;
    changed_.clear();
    changed_.push_back(b);
    const Offset end = place + size_[b];
    for (const int32_t other : neighbours_[b]) {
      State& state = state_[other];
      if (state.placed) continue;
      const Offset top = AlignUp(end, alignment_[other]);
      if (top <= state.top || size_[other] == 0) continue;
      SaveState(other);
      state.top = top;
      if (IsFixed(other)) {
        if (top > fixed_[other]) return false;
        continue;
      }
      if (top > state.low) {
        state.low = top;
        changed_.push_back(other);
      }
    }
    return Settle(left, place);
  }

  // Exclude `b` as the next buffer at that offset.
  bool Skip(int32_t b, Offset place, const std::vector<int32_t>& left) {
    if (IsFixed(b)) return true;  // later placements above it fail by themselves
    SaveState(b);
    state_[b].rejected_top = place;
    changed_.clear();
    changed_.push_back(b);
    return Settle(left, place);
  }

  // Raise the bounds of closed buffers and check that all buffers still fit.
  bool Settle(const std::vector<int32_t>& left, Offset floor) {
    for (const int32_t b : left) {
      State& state = state_[b];
      if (state.placed || state.low >= floor) continue;
      if (IsFixed(b)) return false;
      SaveState(b);
      state.low = AlignUp(floor, alignment_[b]);
      changed_.push_back(b);
    }
    do {
      if (!Support(left) || !LiveSetsFit()) return false;
    } while (!changed_.empty());
    return true;
  }

  // A closed buffer rests on an unplaced neighbour, and the chain ends at an open buffer: shortest
  // paths from the open buffers (Dijkstra).
  bool Support(const std::vector<int32_t>& left) {
    if (!rules_.support) return true;
    closed_.clear();
    for (const int32_t b : left) {
      if (!state_[b].placed && !IsOpen(b)) {
        closed_.push_back(b);
        support_[b] = kNever;
      }
    }
    heap_.clear();
    for (const int32_t b : closed_) {
      Offset support = kNever;
      for (const int32_t other : neighbours_[b]) {
        if (!state_[other].placed && support_[other] == kOpen) {
          support = std::min(support, state_[other].low + size_[other]);
        }
      }
      if (support < kNever) Relax(b, support);
    }
    size_t settled = 0;
    bool holds = true;
    while (holds && !heap_.empty()) {
      std::pop_heap(heap_.begin(), heap_.end(), std::greater<>());
      const auto [low, b] = heap_.back();
      heap_.pop_back();
      if (low != support_[b]) continue;  // outdated heap entry
      ++settled;
      if (low + size_[b] > capacity_) {
        holds = false;
        break;
      }
      if (low > state_[b].low) {
        SaveState(b);
        state_[b].low = low;
        changed_.push_back(b);
      }
      for (const int32_t other : neighbours_[b]) {
        if (support_[other] > low + size_[b]) Relax(other, low + size_[b]);
      }
    }
    holds = holds && settled >= closed_.size();
    for (const int32_t b : closed_) support_[b] = kOpen;
    return holds;
  }

  void Relax(int32_t b, Offset support) {
    const Offset low = AlignUp(std::max(support, state_[b].low), alignment_[b]);
    if (low >= support_[b]) return;
    support_[b] = low;
    heap_.emplace_back(low, b);
    std::push_heap(heap_.begin(), heap_.end(), std::greater<>());
  }

  // Check the live sets of all changed buffers; buffers whose bounds rise are queued again.
  bool LiveSetsFit() {
    if (!rules_.moments) {
      for (const int32_t b : changed_) {
        if (state_[b].low + size_[b] > capacity_) return false;
      }
      changed_.clear();
      return true;
    }
    ++live_set_mark_;
    marked_.clear();
    for (const int32_t b : changed_) {
      for (const int32_t m : live_sets_of_[b]) {
        if (live_set_marked_[m] == live_set_mark_) continue;
        live_set_marked_[m] = live_set_mark_;
        marked_.push_back(m);
      }
    }
    changed_.clear();
    bool fit = true;
    for (const int32_t m : marked_) fit = fit && LiveSetFits(m);
    for (const int32_t m : marked_) {
      fit = fit && (!thorough_ || NotFirst(m));
      if (!fit) return false;
    }
    return true;
  }

  // If a buffer as the lowest one of some of its live set would push them beyond the capacity, it
  // must be above at least one of them.
  bool NotFirst(int32_t m) {
    // Sorted by LiveSetFits().
    const LiveSet& live_set = live_sets_[m];
    const int64_t highest = capacity_ - left_[m];  // highest offset of the lowest buffer
    if (state_[live_set.back()].low <= highest || state_[live_set.back()].placed) return true;
    ends_.clear();
    for (const int32_t b : live_set) {
      if (!state_[b].placed) ends_.emplace_back(state_[b].low + size_[b], b);
    }
    std::sort(ends_.begin(), ends_.end(), std::greater<>());
    sums_.clear();
    int64_t sum = 0;
    for (const auto& [end, b] : ends_) sums_.push_back(sum += size_[b]);
    for (auto it = live_set.rbegin(); it != live_set.rend(); ++it) {
      const int32_t b = *it;
      State& state = state_[b];
      if (state.low <= highest) break;
      if (state.placed || IsFixed(b)) continue;
      // The smallest set of highest ends, excluding b itself, that cannot all be above b.
      const int64_t room = capacity_ - state.low - size_[b];
      auto last = std::upper_bound(sums_.begin(), sums_.end(), room);
      if (last == sums_.end()) continue;
      const std::pair<Offset, int32_t> own(state.low + size_[b], b);
      if (own >= ends_[last - sums_.begin()]) {
        last = std::upper_bound(last, sums_.end(), room + size_[b]);
        if (last == sums_.end()) continue;
      }
      Offset low = ends_[last - sums_.begin()].first;
      if (low <= state.low) continue;
      low = AlignUp(low, alignment_[b]);
      if (low + size_[b] > capacity_) {
        live_set_weight_[m] += 1;
        return false;
      }
      SaveState(b);
      state.low = low;
      changed_.push_back(b);
    }
    return true;
  }

  bool LiveSetFits(int32_t m) {
    LiveSet& live_set = live_sets_[m];
    // Insertion sort: nearly sorted already.
    for (size_t i = 1; i < live_set.size(); ++i) {
      const int32_t b = live_set[i];
      const Offset low = state_[b].low;
      size_t j = i;
      for (; j > 0 && state_[live_set[j - 1]].low > low; --j) live_set[j] = live_set[j - 1];
      live_set[j] = b;
    }
    // Stack the unplaced buffers from each lower bound on.
    Offset end = 0;
    int64_t above = 0;
    for (auto it = live_set.rbegin(); above < left_[m]; ++it) {
      if (state_[*it].placed) continue;
      above += size_[*it];
      end = std::max(end, state_[*it].low + above);
    }
    if (end <= capacity_) return true;
    live_set_weight_[m] += 1;
    return false;
  }

  const Problem& problem_;
  const int64_t capacity_;
  const ExactOptions& options_;
  const ExactRules rules_;
  Clock::time_point deadline_;

  std::vector<std::vector<int32_t>> neighbours_;
  std::vector<int64_t> size_;
  std::vector<int64_t> alignment_;
  std::vector<Offset> fixed_;  // -1: not fixed
  std::vector<int64_t> left_;  // by live set: bytes not placed yet
  std::vector<LiveSet> live_sets_;
  std::vector<std::vector<int32_t>> live_sets_of_;
  std::vector<int64_t> max_live_;  // by buffer: bytes of its largest live set
  std::vector<int32_t> rank_;

  std::vector<State> state_;
  std::vector<Offset> offsets_;
  std::vector<Change> trail_;
  std::vector<int32_t> changed_;
  std::vector<int32_t> closed_;
  std::vector<Offset> support_;  // of closed buffers; kOpen for others
  std::vector<std::pair<Offset, int32_t>> heap_;
  std::vector<int32_t> marked_;
  std::vector<std::pair<Offset, int32_t>> ends_;
  std::vector<int64_t> sums_;
  std::vector<int64_t> live_set_marked_;
  std::vector<double> live_set_weight_;
  int64_t live_set_mark_ = 0;
  std::unordered_set<Key, KeyHash> failed_;

  int64_t nodes_ = 0;
  int64_t nodes_left_ = 0;
  bool stopped_ = false;
  bool out_of_time_ = false;
  bool thorough_ = false;  // whether this try uses the rule not_first
};

}  // namespace

ExactAnswer SolveExactly(const Problem& problem, int64_t capacity, const ExactOptions& options) {
  if (problem.buffers.empty()) return {Outcome::kSolved, {}, 0};
  return Search(problem, capacity, options).Run();
}

}  // namespace tfswap::packing
