#include "core/simulate/local_search.h"

#include <algorithm>
#include <chrono>
#include <cmath>

namespace tfswap {
namespace {

constexpr int32_t kNone = -1;
constexpr double kStalledSwapProbability = 0.7;
constexpr int kTriesPerClockCheck = 8;

}  // namespace

uint64_t Random::Next() {
  uint64_t z = state_ += 0x9e3779b97f4a7c15;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

LocalSearch::LocalSearch(std::shared_ptr<const Timeline> timeline, SearchRules rules,
                         std::vector<Swap> swaps, uint64_t seed)
    : timeline_(std::move(timeline)),
      rules_(std::move(rules)),
      tiers_({rules_.tier}),
      random_(seed),
      swaps_(std::move(swaps)) {
  const auto num_ops = static_cast<size_t>(timeline_->num_ops());
  Require(rules_.usable.size() == num_ops && rules_.op_context.size() == num_ops,
          "usable and op_context need one entry per op");
  Require(rules_.absence_context.size() == timeline_->data().absences.size(),
          "absence_context needs one entry per absence");
  Require(rules_.forms.empty() || rules_.forms.size() == rules_.absence_context.size(),
          "forms need one entry per absence");
  if (rules_.slow) slow_tiers_.push_back(*rules_.slow);
  std::sort(swaps_.begin(), swaps_.end(),
            [](const Swap& a, const Swap& b) { return a.absence < b.absence; });
  Require(!swaps_.empty(), "the initial plan must not be empty");
  result_ = Simulate(*timeline_, swaps_, tiers_, std::nullopt);
  cost_ = CostOf(result_);
  ListAnchors();
  ListOptions();
  used_.assign(option_of_.size(), false);
  for (const Swap& swap : swaps_) {
    used_[swap.absence] = true;
    Require(option_of_[swap.absence] != kNone,
            "absence " + Number(swap.absence) + " is smaller than min_bytes");
  }
}

bool LocalSearch::Run(double seconds, int64_t tries) {
  using Clock = std::chrono::steady_clock;
  const auto end = Clock::now() + std::chrono::duration<double>(seconds);
  const auto more = [&] { return result_.stall_ns > rules_.enough_ns && tried_ < tries; };
  while (more() && Clock::now() < end) {
    for (int i = 0; i < kTriesPerClockCheck && more(); ++i) Try();
  }
  return more();
}

void LocalSearch::ListAnchors() {
  std::vector<int32_t> contexts = rules_.absence_context;
  std::sort(contexts.begin(), contexts.end());
  contexts.erase(std::unique(contexts.begin(), contexts.end()), contexts.end());
  for (int32_t context : contexts) {
    auto anchors = std::make_unique<Anchors>();
    anchors->context = context;
    for (int32_t op = 0; op < timeline_->num_ops(); ++op) {
      if (rules_.usable[op] && rules_.op_context[op] == context) anchors->by_start.push_back(op);
    }
    anchors->by_end = anchors->by_start;
    const Timeline& timeline = *timeline_;
    std::sort(anchors->by_start.begin(), anchors->by_start.end(), [&](int32_t a, int32_t b) {
      return timeline.start_position(a) < timeline.start_position(b);
    });
    std::sort(anchors->by_end.begin(), anchors->by_end.end(), [&](int32_t a, int32_t b) {
      return timeline.end_position(a) < timeline.end_position(b);
    });
    for (int32_t op : anchors->by_start) anchors->starts.push_back(timeline.start_position(op));
    for (int32_t op : anchors->by_end) anchors->ends.push_back(timeline.end_position(op));
    anchors_.push_back(std::move(anchors));
  }
}

const LocalSearch::Anchors& LocalSearch::AnchorsOf(int32_t context) const {
  return **std::lower_bound(
      anchors_.begin(), anchors_.end(), context,
      [](const std::unique_ptr<Anchors>& a, int32_t wanted) { return a->context < wanted; });
}

void LocalSearch::ListOptions() {
  const auto& absences = timeline_->data().absences;
  option_of_.assign(absences.size(), kNone);
  const auto place = [](const std::vector<int32_t>& sorted, int32_t value) {
    return static_cast<int32_t>(std::upper_bound(sorted.begin(), sorted.end(), value) -
                                sorted.begin());
  };
  for (int32_t index = 0; index < static_cast<int32_t>(absences.size()); ++index) {
    const Absence& absence = absences[index];
    const Bytes bytes = timeline_->data().buffer_bytes[absence.buffer];
    if (bytes < std::max<Bytes>(rules_.min_bytes, 1)) continue;
    Option option;
    option.absence = index;
    option.bytes = bytes;
    option.begins = timeline_->end_position(absence.after_op);
    option.ends = timeline_->start_position(absence.before_op);
    option.crosses = timeline_->CrossesStepEnd(absence);
    option.anchors = &AnchorsOf(rules_.absence_context[index]);
    const Anchors& anchors = *option.anchors;
    const auto num_anchors = static_cast<int32_t>(anchors.starts.size());
    // Gates start after the copy-out can have begun.
    option.first_gate = absence.producer_op == kNone
                            ? 0
                            : place(anchors.starts, timeline_->end_position(absence.producer_op));
    const int32_t gates_end = option.crosses ? num_anchors : place(anchors.starts, option.ends - 1);
    option.num_gates = std::max(gates_end - option.first_gate, 0);
    // Triggers end before the buffer is needed.
    option.first_trigger = option.crosses ? 0 : place(anchors.ends, option.begins);
    option.num_triggers = std::max(place(anchors.ends, option.ends - 1) - option.first_trigger, 0);
    option_of_[index] = static_cast<int32_t>(options_.size());
    options_.push_back(option);
  }
}

LocalSearch::Cost LocalSearch::CostOf(const SimResult& result) const {
  const Bytes moved = result.bytes_out + result.bytes_in;
  const double copying_ns = std::round(rules_.copying_ns_per_byte * static_cast<double>(moved));
  return {static_cast<double>(result.step_ns) + copying_ns, moved};
}

bool LocalSearch::FitsOnSlowLink(const std::vector<Swap>& swaps) const {
  if (!rules_.slow) return true;
  return Simulate(*timeline_, swaps, slow_tiers_, std::nullopt).peak_bytes <= rules_.limit_bytes;
}

void LocalSearch::Try() {
  ++tried_;
  std::vector<Swap> swaps = swaps_;
  if (!MakeNeighbour(&swaps)) return;
  SimResult result = Simulate(*timeline_, swaps, tiers_, std::nullopt);
  const Cost cost = CostOf(result);
  if (result.peak_bytes > rules_.limit_bytes || cost > cost_ || !FitsOnSlowLink(swaps)) return;
  for (const Swap& swap : swaps_) used_[swap.absence] = false;
  swaps_ = std::move(swaps);
  for (const Swap& swap : swaps_) used_[swap.absence] = true;
  result_ = std::move(result);
  cost_ = cost;
}

size_t LocalSearch::PickSwap() {
  if (random_.Chance(kStalledSwapProbability)) {
    Nanoseconds total = 0;
    for (const Stall& stall : result_.stalls) total += stall.swap < 0 ? 0 : stall.ns;
    Nanoseconds pick = random_.Below(total);
    for (const Stall& stall : result_.stalls) {
      if (stall.swap < 0) continue;
      pick -= stall.ns;
      if (pick < 0) return static_cast<size_t>(stall.swap);
    }
  }
  return static_cast<size_t>(random_.Below(static_cast<int64_t>(swaps_.size())));
}

bool LocalSearch::MakeNeighbour(std::vector<Swap>* swaps) {
  const size_t place = PickSwap();
  const double move = random_.Unit();
  if (move < 0.4) {
    Shift(&(*swaps)[place]);
  } else if (move < 0.5) {
    swaps->erase(swaps->begin() + static_cast<std::ptrdiff_t>(place));
  } else if (move < 0.8) {
    const Swap like = (*swaps)[place];
    const Option* other = PickOverlapping(OptionOf(like.absence));
    if (other == nullptr) return false;
    if (random_.Chance(0.7)) swaps->erase(swaps->begin() + static_cast<std::ptrdiff_t>(place));
    const auto after =
        std::lower_bound(swaps->begin(), swaps->end(), other->absence,
                         [](const Swap& swap, int32_t absence) { return swap.absence < absence; });
    swaps->insert(after, MoveTo(like, *other));
  } else {
    for (int i = 0; i < 3; ++i) {
      Shift(&(*swaps)[static_cast<size_t>(random_.Below(static_cast<int64_t>(swaps->size())))]);
    }
  }
  return !swaps->empty();
}

void LocalSearch::Shift(Swap* swap) {
  const Option& option = OptionOf(swap->absence);
  // Geometric, with a mean of four.
  const auto steps = 1 + static_cast<int32_t>(std::log1p(-random_.Unit()) / std::log(0.75));
  const int32_t distance = random_.Chance(0.5) ? steps : -steps;
  if (random_.Chance(0.5)) {
    // The last position means no gate.
    int32_t place = option.num_gates;
    if (swap->gate_op != kNone) {
      const int32_t start = timeline_->start_position(swap->gate_op);
      const auto& starts = option.anchors->starts;
      place = static_cast<int32_t>(std::lower_bound(starts.begin(), starts.end(), start) -
                                   starts.begin()) -
              option.first_gate;
    }
    place = std::clamp(place + distance, 0, option.num_gates);
    swap->gate_op =
        place == option.num_gates ? kNone : option.anchors->by_start[option.first_gate + place];
  } else {
    // The first position means no trigger.
    int32_t place = 0;
    if (swap->trigger_op != kNone) {
      const int32_t end = timeline_->end_position(swap->trigger_op);
      const auto& ends = option.anchors->ends;
      place = 1 +
              static_cast<int32_t>(std::lower_bound(ends.begin(), ends.end(), end) - ends.begin()) -
              option.first_trigger;
    }
    place = std::clamp(place + distance, 0, option.num_triggers);
    swap->trigger_op =
        place == 0 ? kNone : option.anchors->by_end[option.first_trigger + place - 1];
  }
}

Swap LocalSearch::MoveTo(const Swap& swap, const Option& other) const {
  Swap like;
  like.absence = other.absence;
  if (!rules_.forms.empty()) {
    const FarForm& form = rules_.forms[other.absence];
    like.far_bytes = form.far_bytes;
    like.encode_ns = form.encode_ns;
    like.decode_ns = form.decode_ns;
  }
  const Anchors& anchors = *other.anchors;
  if (swap.gate_op != kNone && other.num_gates > 0) {
    const int32_t start = timeline_->start_position(swap.gate_op);
    const auto place =
        static_cast<int32_t>(std::lower_bound(anchors.starts.begin(), anchors.starts.end(), start) -
                             anchors.starts.begin());
    like.gate_op =
        anchors
            .by_start[std::clamp(place, other.first_gate, other.first_gate + other.num_gates - 1)];
  }
  if (swap.trigger_op != kNone && other.num_triggers > 0) {
    const int32_t end = timeline_->end_position(swap.trigger_op);
    const auto after = static_cast<int32_t>(
        std::upper_bound(anchors.ends.begin(), anchors.ends.end(), end) - anchors.ends.begin());
    const int32_t place = std::min(after - other.first_trigger, other.num_triggers);
    if (place > 0) like.trigger_op = anchors.by_end[other.first_trigger + place - 1];
  }
  return like;
}

const LocalSearch::Option* LocalSearch::PickOverlapping(const Option& option) {
  const auto num_events = static_cast<int32_t>(timeline_->events().size());
  const int32_t end = option.ends + (option.crosses ? num_events : 0);
  auto position =
      option.begins + static_cast<int32_t>(random_.Below(std::max(end - option.begins, 1)));
  position %= num_events;
  const auto spans = [&](const Option& other) {
    const bool begun = other.begins <= position, not_over = other.ends > position;
    return !used_[other.absence] && (other.crosses ? begun || not_over : begun && not_over);
  };
  Bytes total = 0;
  for (const Option& other : options_) total += spans(other) ? other.bytes : 0;
  Bytes pick = random_.Below(total);
  for (const Option& other : options_) {
    if (!spans(other)) continue;
    pick -= other.bytes;
    if (pick < 0) return &other;
  }
  return nullptr;
}

}  // namespace tfswap
