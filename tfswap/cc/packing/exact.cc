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

// 128 bits, as two that are mixed apart.
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
constexpr int64_t kEasyNodes = 1500;        // of the first tries, one for each order
constexpr int64_t kFirstNodes = 200;        // of those after them
constexpr double kGrowth = 1.1;             // of the tries, a round of orders
constexpr double kNoise = 1.2;              // by what factor an order is shaken
constexpr size_t kMostMemories = 20000000;  // hashes: half a GiB
constexpr int64_t kNodesPerLookAtTheClock = 64;

// Bottom-up search. A state is: which buffers are placed, and for each other one
//
//   top   where it would rest now: on the highest placed buffer that it overlaps, or on the ground
//   low   no solution that is still looked for has it lower; top <= low
//
// A buffer with low == top is *open*: it can be placed, at top. Any solution can be pushed down
// until each buffer rests on another or on the ground, and told as the sequence of its placements
// by (offset, rank). The search goes through these sequences. When a buffer was tried as the next
// one and failed, or is below the offset that the sequence has come to, it is not open any more:
// it will rest on some neighbour that is not placed yet (the rule `support`).
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
    FindMoments();
    moment_marked_.assign(moments_.size(), 0);
    moment_weight_.assign(moments_.size(), 1);
  }

  ExactAnswer Run() {
    ExactAnswer answer;
    std::mt19937_64 random(options_.seed);
    std::vector<int32_t> all;
    for (size_t b = 0; b < problem_.buffers.size(); ++b) all.push_back(static_cast<int32_t>(b));
    std::sort(all.begin(), all.end(), [&](int32_t a, int32_t b) {
      return problem_.buffers[a].lower < problem_.buffers[b].lower;
    });
    // Many short tries, each with another order among equals; what they learn stays.
    double limit = kFirstNodes;
    for (int round = 0;; ++round) {
      Rank(round, &random);
      if (!Start(all)) {
        answer.outcome = Outcome::kImpossible;
        break;
      }
      // What is easy is found sooner without the rule that takes longest.
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
    Offset barred = -1;  // a top at which it was tried in vain
    bool placed = false;
  };
  struct Change {
    int32_t buffer;
    State before;
  };
  // The largest sets of buffers that are live together.
  using Moment = std::vector<int32_t>;

  static constexpr int kOrders = 4;

  void FindMoments() {
    // Just before something ends, if something began since the last end.
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
    moments_of_.resize(problem_.buffers.size());
    Moment live;
    bool grown = false;
    for (const auto& [time, begins, b] : events) {
      if (begins) {
        live.push_back(b);
        grown = true;
        continue;
      }
      if (grown) {
        for (const int32_t other : live) {
          moments_of_[other].push_back(static_cast<int32_t>(moments_.size()));
        }
        moments_.push_back(live);
        grown = false;
      }
      live.erase(std::find(live.begin(), live.end(), b));
    }
    live_.assign(problem_.buffers.size(), 0);
    for (const Moment& moment : moments_) {
      int64_t sum = 0;
      for (const int32_t b : moment) sum += problem_.buffers[b].size;
      for (const int32_t b : moment) live_[b] = std::max(live_[b], sum);
    }
  }

  // Who goes first among those that could rest at the same offset.
  void Rank(int round, std::mt19937_64* random) {
    const auto width = [&](int32_t b) {
      return static_cast<double>(problem_.buffers[b].upper - problem_.buffers[b].lower);
    };
    const auto size = [&](int32_t b) { return static_cast<double>(problem_.buffers[b].size); };
    const auto live = [&](int32_t b) { return static_cast<double>(live_[b]); };
    std::vector<double> weight(rank_.size(), 0);
    for (size_t m = 0; m < moments_.size(); ++m) {
      for (const int32_t b : moments_[m]) weight[b] += moment_weight_[m];
    }
    std::vector<std::tuple<double, double, double, int32_t>> keys;
    for (size_t i = 0; i < rank_.size(); ++i) {
      const auto b = static_cast<int32_t>(i);
      if (round >= kOrders) {
        // Those that were live when tries failed first: more often, the more.
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

  // Nothing is placed. False if that alone fails.
  bool Start(const std::vector<int32_t>& all) {
    trail_.clear();
    std::fill(state_.begin(), state_.end(), State());
    for (const int32_t b : all) {
      const Buffer& buffer = problem_.buffers[b];
      if (buffer.fixed.has_value()) state_[b].low = *buffer.fixed;
      if (state_[b].low + buffer.size > capacity_) return false;
    }
    left_.assign(moments_.size(), 0);
    for (size_t m = 0; m < moments_.size(); ++m) {
      for (const int32_t b : moments_[m]) left_[m] += size_[b];
    }
    for (size_t m = 0; m < moments_.size(); ++m) {
      if (!MomentFits(static_cast<int32_t>(m))) return false;
    }
    return true;
  }

  bool IsFixed(int32_t b) const { return fixed_[b] >= 0; }

  bool IsOpen(int32_t b) const {
    const State& state = state_[b];
    if (IsFixed(b)) return true;
    return state.low == state.top && state.barred != state.top;
  }

  // Where it would be placed next.
  Offset PlaceOf(int32_t b) const { return IsFixed(b) ? fixed_[b] : state_[b].top; }

  void Remember(int32_t b) { trail_.push_back({b, state_[b]}); }

  void Undo(size_t mark) {
    while (trail_.size() > mark) {
      const int32_t b = trail_.back().buffer;
      if (state_[b].placed && !trail_.back().before.placed) {
        for (const int32_t m : moments_of_[b]) left_[m] += size_[b];
      }
      state_[b] = trail_.back().before;
      trail_.pop_back();
    }
  }

  bool OutOfTime() {
    if (nodes_ % kNodesPerLookAtTheClock == 0) {
      out_of_time_ |=
          Clock::now() > deadline_ || (options_.cancelled != nullptr && options_.cancelled->load());
    }
    return out_of_time_;
  }

  // Solves what is left, in parts that share no moment. `floor`: the offset that the sequence has
  // come to.
  bool SolveParts(const std::vector<int32_t>& left, Offset floor) {
    if (!rules_.decomposition) return left.empty() || Solve(left, floor);
    // By their begins; a part ends where the next buffer begins after all before it have ended.
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
    // Small ones first: they fail fast.
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
    if (!solved && !stopped_ && rules_.memory && failed_.size() < kMostMemories)
      failed_.insert(key);
    return solved;
  }

  bool Branch(const std::vector<int32_t>& left, Offset floor) {
    const size_t mark = trail_.size();
    // Nothing that is left may begin above the lowest end: there would be room below it.
    Offset lowest_end = kNever;
    for (const int32_t b : left) {
      lowest_end = std::min(lowest_end, PlaceOf(b) + size_[b]);
    }
    std::vector<std::tuple<Offset, int32_t, int32_t>> candidates;
    for (const int32_t b : left) {
      const Offset place = PlaceOf(b);
      if (place < floor || !IsOpen(b) || state_[b].top > place) continue;
      if (rules_.dominance && place >= lowest_end && size_[b] > 0) continue;
      candidates.emplace_back(place, rank_[b], b);
    }
    std::sort(candidates.begin(), candidates.end());
    std::vector<int32_t> rest(left.size() - 1);
    for (const auto& [place, rank, b] : candidates) {
      const size_t inner = trail_.size();
      if (PlaceNext(b, place, left)) {
        std::copy_if(left.begin(), left.end(), rest.begin(), [b = b](int32_t o) { return o != b; });
        offsets_[b] = place;
        if (SolveParts(rest, place)) return true;
      }
      Undo(inner);
      if (stopped_) break;
      if (!PassOver(b, place, left)) break;
    }
    Undo(mark);
    return false;
  }

  // Puts `b` at `place` and works out what follows for the others. False: nothing can follow.
  bool PlaceNext(int32_t b, Offset place, const std::vector<int32_t>& left) {
    Remember(b);
    state_[b].placed = true;
    for (const int32_t m : moments_of_[b]) left_[m] -= size_[b];
    state_[b].low = place;
    changed_.clear();
    changed_.push_back(b);
    const Offset end = place + size_[b];
    for (const int32_t other : neighbours_[b]) {
      State& state = state_[other];
      if (state.placed) continue;
      const Offset top = AlignUp(end, alignment_[other]);
      if (top <= state.top || size_[other] == 0) continue;
      Remember(other);
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

  // `b` is not the next one at that place.
  bool PassOver(int32_t b, Offset place, const std::vector<int32_t>& left) {
    if (IsFixed(b)) return true;  // what is placed above it from now on fails by itself
    Remember(b);
    state_[b].barred = place;
    changed_.clear();
    changed_.push_back(b);
    return Settle(left, place);
  }

  // Lowest offsets of those that will rest on what is not placed yet, and whether all still fits.
  bool Settle(const std::vector<int32_t>& left, Offset floor) {
    for (const int32_t b : left) {
      State& state = state_[b];
      if (state.placed || state.low >= floor) continue;
      if (IsFixed(b)) return false;
      Remember(b);
      state.low = AlignUp(floor, alignment_[b]);
      changed_.push_back(b);
    }
    do {
      if (!Support(left) || !MomentsFit()) return false;
    } while (!changed_.empty());
    return true;
  }

  // What is not open comes to rest on a neighbour that is not placed yet, and that one, in the end,
  // on an open one: shortest paths from those (Dijkstra).
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
      if (support < kNever) Offer(b, support);
    }
    size_t settled = 0;
    bool holds = true;
    while (holds && !heap_.empty()) {
      std::pop_heap(heap_.begin(), heap_.end(), std::greater<>());
      const auto [low, b] = heap_.back();
      heap_.pop_back();
      if (low != support_[b]) continue;  // a better offer came later
      ++settled;
      if (low + size_[b] > capacity_) {
        holds = false;
        break;
      }
      if (low > state_[b].low) {
        Remember(b);
        state_[b].low = low;
        changed_.push_back(b);
      }
      for (const int32_t other : neighbours_[b]) {
        if (support_[other] > low + size_[b]) Offer(other, low + size_[b]);
      }
    }
    holds = holds && settled >= closed_.size();
    for (const int32_t b : closed_) support_[b] = kOpen;
    return holds;
  }

  void Offer(int32_t b, Offset support) {
    const Offset low = AlignUp(std::max(support, state_[b].low), alignment_[b]);
    if (low >= support_[b]) return;
    support_[b] = low;
    heap_.emplace_back(low, b);
    std::push_heap(heap_.begin(), heap_.end(), std::greater<>());
  }

  // Looks at the moments of all that has changed; what has to be looked at again is in the queue.
  bool MomentsFit() {
    if (!rules_.moments) {
      for (const int32_t b : changed_) {
        if (state_[b].low + size_[b] > capacity_) return false;
      }
      changed_.clear();
      return true;
    }
    ++moment_mark_;
    marked_.clear();
    for (const int32_t b : changed_) {
      for (const int32_t m : moments_of_[b]) {
        if (moment_marked_[m] == moment_mark_) continue;
        moment_marked_[m] = moment_mark_;
        marked_.push_back(m);
      }
    }
    changed_.clear();
    bool fit = true;
    for (const int32_t m : marked_) fit = fit && MomentFits(m);
    for (const int32_t m : marked_) {
      fit = fit && (!thorough_ || NotFirst(m));
      if (!fit) return false;
    }
    return true;
  }

  // A buffer that, as the lowest of some that are live with it, would push them over the height, is
  // above one of them at least.
  bool NotFirst(int32_t m) {
    // Sorted by MomentFits().
    const Moment& moment = moments_[m];
    const int64_t highest = capacity_ - left_[m];  // of a first one
    if (state_[moment.back()].low <= highest || state_[moment.back()].placed) return true;
    ends_.clear();
    for (const int32_t b : moment) {
      if (!state_[b].placed) ends_.emplace_back(state_[b].low + size_[b], b);
    }
    std::sort(ends_.begin(), ends_.end(), std::greater<>());
    sums_.clear();
    int64_t sum = 0;
    for (const auto& [end, b] : ends_) sums_.push_back(sum += size_[b]);
    for (auto it = moment.rbegin(); it != moment.rend(); ++it) {
      const int32_t b = *it;
      State& state = state_[b];
      if (state.low <= highest) break;
      if (state.placed || IsFixed(b)) continue;
      // The fewest of the highest ends that cannot all be above b; without b itself.
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
        moment_weight_[m] += 1;
        return false;
      }
      Remember(b);
      state.low = low;
      changed_.push_back(b);
    }
    return true;
  }

  bool MomentFits(int32_t m) {
    Moment& moment = moments_[m];
    // Nearly sorted from the last time.
    for (size_t i = 1; i < moment.size(); ++i) {
      const int32_t b = moment[i];
      const Offset low = state_[b].low;
      size_t j = i;
      for (; j > 0 && state_[moment[j - 1]].low > low; --j) moment[j] = moment[j - 1];
      moment[j] = b;
    }
    // What is live from each lowest offset on, on top of it.
    Offset end = 0;
    int64_t above = 0;
    for (auto it = moment.rbegin(); above < left_[m]; ++it) {
      if (state_[*it].placed) continue;
      above += size_[*it];
      end = std::max(end, state_[*it].low + above);
    }
    if (end <= capacity_) return true;
    moment_weight_[m] += 1;
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
  std::vector<Offset> fixed_;  // -1: it is not
  std::vector<int64_t> left_;  // of each moment: the bytes that are not placed yet
  std::vector<Moment> moments_;
  std::vector<std::vector<int32_t>> moments_of_;
  std::vector<int64_t> live_;  // the fullest moment of each buffer
  std::vector<int32_t> rank_;

  std::vector<State> state_;
  std::vector<Offset> offsets_;
  std::vector<Change> trail_;
  std::vector<int32_t> changed_;
  std::vector<int32_t> closed_;
  std::vector<Offset> support_;  // of what is not open; kOpen for others
  std::vector<std::pair<Offset, int32_t>> heap_;
  std::vector<int32_t> marked_;
  std::vector<std::pair<Offset, int32_t>> ends_;
  std::vector<int64_t> sums_;
  std::vector<int64_t> moment_marked_;
  std::vector<double> moment_weight_;
  int64_t moment_mark_ = 0;
  std::unordered_set<Key, KeyHash> failed_;

  int64_t nodes_ = 0;
  int64_t nodes_left_ = 0;
  bool stopped_ = false;
  bool out_of_time_ = false;
  bool thorough_ = false;  // whether this try goes by not_first
};

}  // namespace

ExactAnswer SolveExactly(const Problem& problem, int64_t capacity, const ExactOptions& options) {
  if (problem.buffers.empty()) return {Outcome::kSolved, {}, 0};
  return Search(problem, capacity, options).Run();
}

}  // namespace tfswap::packing
