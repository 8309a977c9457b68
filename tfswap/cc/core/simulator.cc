#include "core/simulator.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <functional>
#include <queue>
#include <stdexcept>
#include <tuple>

namespace tfswap {
namespace {

constexpr int32_t kNone = -1;
constexpr Nanoseconds kNever = std::numeric_limits<int64_t>::max();

Nanoseconds CopyDuration(Bytes bytes, double bytes_per_s, Nanoseconds latency_ns) {
  return latency_ns +
         static_cast<Nanoseconds>(std::ceil(static_cast<double>(bytes) * 1e9 / bytes_per_s));
}

void Require(bool holds, const std::string& message) {
  if (!holds) throw std::invalid_argument(message);
}

std::string Number(int64_t value) { return std::to_string(value); }

// For each op, the swaps that have something to do with it, in the order in which they are kept.
class SwapsOfOp {
 public:
  SwapsOfOp(size_t num_ops, size_t num_swaps) : first_(num_ops, kNone), next_(num_swaps, kNone) {}

  // To be called with falling swap numbers.
  void AddInFront(int32_t op, int32_t swap) {
    next_[swap] = first_[op];
    first_[op] = swap;
  }
  int32_t First(int32_t op) const { return first_[op]; }
  int32_t Next(int32_t swap) const { return next_[swap]; }

 private:
  std::vector<int32_t> first_;
  std::vector<int32_t> next_;
};

// One run of the simulator. Swaps are numbered by their absences here, so that the order in which
// they are given does not matter.
class Replay {
 public:
  Replay(const Timeline& timeline, const std::vector<Swap>& swaps, const LinkSpeeds& link,
         std::optional<Bytes> budget_bytes);

  SimResult Run();

 private:
  struct SwapState {
    Swap swap;
    Absence absence;
    int32_t given_place;  // in the caller's list
    int32_t leader;       // the swap whose copy-out this one uses; itself in the common case
    Bytes bytes;
    bool after_ended = false;
    bool fired = false;         // its trigger has ended
    bool in_scheduled = false;  // the moment of joining the in queue is known
    bool in_done = false;
    SwapTimes times;
    // Of a leader only.
    std::vector<int32_t> followers;
    bool out_scheduled = false;
    bool out_done = false;
    int32_t copies_in_left = 1;
  };

  // Ordered by time; at equal times copies-out end first, then copies-in, then new ones join the
  // queue by number.
  using Join = std::pair<Nanoseconds, int32_t>;

  void NumberSwaps(const std::vector<Swap>& swaps);
  void CheckSwap(const Swap& swap) const;

  void OnAlloc(int32_t buffer);
  void OnFree(int32_t buffer);
  void OnOpStart(int32_t op);
  void OnOpEnd(int32_t op);

  void AskForCopyOut(int32_t number);
  void AskForCopyIn(int32_t number);
  void StartCopyIn();
  void ReleaseIfDone(SwapState& state);

  // Handles the copies' next event if it is not after `until_ns`; says whether there was one.
  bool NextCopyEvent(Nanoseconds until_ns);
  void Advance(Nanoseconds until_ns);
  void StartCopiesIn();
  Nanoseconds NextOutEnd() const;

  void ChangeLoad(int32_t buffer, Bytes delta);
  void Stalled(int32_t op, StallCause cause, int32_t number, Nanoseconds ns);
  SwapState& LeaderOf(int32_t number) { return states_[states_[number].leader]; }
  bool WouldExceed(Bytes bytes) const { return budget_bytes_ && load_ + bytes > *budget_bytes_; }
  void FinishPeakHolders();
  void FinishHostPeak();

  const Timeline& timeline_;
  const TimelineData& data_;
  const LinkSpeeds& link_;
  const std::optional<Bytes> budget_bytes_;

  std::vector<SwapState> states_;
  SwapsOfOp produced_by_, absent_after_, gated_by_, triggered_by_, needed_by_;

  Nanoseconds now_ = 0;
  Nanoseconds shift_ = 0;
  Bytes load_ = 0;
  int32_t last_started_op_ = kNone;

  std::vector<int32_t> out_queue_;  // all that were ever asked for; their ends ascend
  size_t outs_ended_ = 0;
  std::deque<int32_t> in_queue_;
  int32_t in_active_ = kNone;
  std::priority_queue<Join, std::vector<Join>, std::greater<Join>> joins_;
  bool allocation_waits_ = false;

  size_t peak_change_ = 0;  // how many load changes led to the peak
  SimResult result_;
};

Replay::Replay(const Timeline& timeline, const std::vector<Swap>& swaps, const LinkSpeeds& link,
               std::optional<Bytes> budget_bytes)
    : timeline_(timeline),
      data_(timeline.data()),
      link_(link),
      budget_bytes_(budget_bytes),
      produced_by_(data_.op_start_ns.size(), swaps.size()),
      absent_after_(data_.op_start_ns.size(), swaps.size()),
      gated_by_(data_.op_start_ns.size(), swaps.size()),
      triggered_by_(data_.op_start_ns.size(), swaps.size()),
      needed_by_(data_.op_start_ns.size(), swaps.size()) {
  NumberSwaps(swaps);
}

void Replay::CheckSwap(const Swap& swap) const {
  const auto num_ops = static_cast<int32_t>(data_.op_start_ns.size());
  const auto num_absences = static_cast<int32_t>(data_.absences.size());
  Require(swap.absence >= 0 && swap.absence < num_absences,
          "a swap names absence " + Number(swap.absence) + " of " + Number(num_absences));
  const std::string name = "the swap of absence " + Number(swap.absence);
  Require(swap.gate_op >= -1 && swap.gate_op < num_ops,
          name + " names gate op " + Number(swap.gate_op) + " of " + Number(num_ops));
  Require(swap.trigger_op >= -1 && swap.trigger_op < num_ops,
          name + " names trigger op " + Number(swap.trigger_op) + " of " + Number(num_ops));
  const int32_t producer = data_.absences[swap.absence].producer_op;
  Require(swap.gate_op == kNone || producer == kNone ||
              timeline_.start_position(swap.gate_op) > timeline_.end_position(producer),
          name + " is gated by op " + Number(swap.gate_op) + ", which starts before its producer " +
              Number(producer) + " has ended");
}

void Replay::NumberSwaps(const std::vector<Swap>& swaps) {
  std::vector<int32_t> order(swaps.size());
  for (size_t i = 0; i < swaps.size(); ++i) order[i] = static_cast<int32_t>(i);
  std::sort(order.begin(), order.end(),
            [&](int32_t a, int32_t b) { return swaps[a].absence < swaps[b].absence; });

  std::vector<int32_t> leader_of_far_copy(data_.absences.size(), kNone);
  states_.reserve(swaps.size());
  for (int32_t place : order) {
    const Swap& swap = swaps[place];
    CheckSwap(swap);
    const auto number = static_cast<int32_t>(states_.size());
    Require(number == 0 || states_.back().swap.absence != swap.absence,
            "absence " + Number(swap.absence) + " is swapped twice");
    SwapState state;
    state.swap = swap;
    state.absence = data_.absences[swap.absence];
    state.given_place = place;
    state.bytes = data_.buffer_bytes[state.absence.buffer];
    state.fired = swap.trigger_op == kNone;
    int32_t& leader = leader_of_far_copy[state.absence.far_copy];
    if (leader == kNone) {
      leader = number;
    } else {
      states_[leader].followers.push_back(number);
      ++states_[leader].copies_in_left;
    }
    state.leader = leader;
    states_.push_back(std::move(state));
  }
  for (auto number = static_cast<int32_t>(states_.size()) - 1; number >= 0; --number) {
    const SwapState& state = states_[number];
    if (state.leader == number && state.absence.producer_op != kNone) {
      produced_by_.AddInFront(state.absence.producer_op, number);
    }
    absent_after_.AddInFront(state.absence.after_op, number);
    needed_by_.AddInFront(state.absence.before_op, number);
    if (state.swap.gate_op != kNone) gated_by_.AddInFront(state.swap.gate_op, number);
    if (state.swap.trigger_op != kNone) triggered_by_.AddInFront(state.swap.trigger_op, number);
  }
}

SimResult Replay::Run() {
  load_ = data_.resident_bytes;
  result_.peak_bytes = load_;
  result_.resident_bytes = load_;
  result_.load_changes.reserve(2 * (data_.buffer_bytes.size() + states_.size()));
  for (size_t number = 0; number < states_.size(); ++number) {
    const SwapState& state = states_[number];
    if (state.leader == static_cast<int32_t>(number) && state.absence.producer_op == kNone) {
      AskForCopyOut(static_cast<int32_t>(number));
    }
  }
  for (const Timeline::Event& event : timeline_.events()) {
    Advance(event.time_ns + shift_);
    now_ = event.time_ns + shift_;
    switch (event.kind) {
      case Timeline::EventKind::kFree:
        OnFree(event.index);
        break;
      case Timeline::EventKind::kOpEnd:
        OnOpEnd(event.index);
        break;
      case Timeline::EventKind::kOpStart:
        OnOpStart(event.index);
        break;
      case Timeline::EventKind::kAlloc:
        OnAlloc(event.index);
        break;
    }
    Advance(now_);
  }
  result_.step_ns = data_.step_ns + shift_;
  result_.stall_ns = shift_;
  result_.fits = !budget_bytes_ || result_.peak_bytes <= *budget_bytes_;
  result_.swap_times.resize(states_.size());
  for (const SwapState& state : states_) result_.swap_times[state.given_place] = state.times;
  FinishPeakHolders();
  FinishHostPeak();
  return std::move(result_);
}

void Replay::OnAlloc(int32_t buffer) {
  const Bytes bytes = data_.buffer_bytes[buffer];
  allocation_waits_ = true;
  while (WouldExceed(bytes) && outs_ended_ < out_queue_.size()) {
    const int32_t number = out_queue_[outs_ended_];
    const Nanoseconds since = now_;
    Advance(NextOutEnd());
    Stalled(last_started_op_, StallCause::kBudget, number, now_ - since);
  }
  allocation_waits_ = false;
  ChangeLoad(buffer, bytes);
}

void Replay::OnFree(int32_t buffer) { ChangeLoad(buffer, -data_.buffer_bytes[buffer]); }

void Replay::OnOpStart(int32_t op) {
  for (int32_t s = needed_by_.First(op); s != kNone; s = needed_by_.Next(s)) {
    if (!states_[s].fired) {
      states_[s].fired = true;
      AskForCopyIn(s);
    }
  }
  Advance(now_);
  for (int32_t s = gated_by_.First(op); s != kNone; s = gated_by_.Next(s)) {
    const Nanoseconds since = now_;
    if (!LeaderOf(s).out_done) Advance(LeaderOf(s).times.out_end_ns);
    Stalled(op, StallCause::kGate, s, now_ - since);
  }
  for (int32_t s = needed_by_.First(op); s != kNone; s = needed_by_.Next(s)) {
    const Nanoseconds since = now_;
    while (!states_[s].in_done) {
      StartCopiesIn();
      // With nothing left to happen, the budget alone holds the queue's head back.
      if (!NextCopyEvent(kNever)) StartCopyIn();
    }
    Advance(now_);
    Stalled(op, StallCause::kSwapIn, s, now_ - since);
  }
  last_started_op_ = op;
}

void Replay::OnOpEnd(int32_t op) {
  for (int32_t s = produced_by_.First(op); s != kNone; s = produced_by_.Next(s)) {
    AskForCopyOut(s);
  }
  for (int32_t s = absent_after_.First(op); s != kNone; s = absent_after_.Next(s)) {
    states_[s].after_ended = true;
    ReleaseIfDone(states_[s]);
  }
  for (int32_t s = triggered_by_.First(op); s != kNone; s = triggered_by_.Next(s)) {
    if (!states_[s].fired) {
      states_[s].fired = true;
      AskForCopyIn(s);
    }
  }
}

void Replay::AskForCopyOut(int32_t number) {
  SwapState& state = states_[number];
  const Nanoseconds link_free =
      out_queue_.empty() ? 0 : states_[out_queue_.back()].times.out_end_ns;
  state.times.out_start_ns = std::max(now_, link_free);
  state.times.out_end_ns = state.times.out_start_ns + link_.OutDuration(state.bytes);
  state.out_scheduled = true;
  out_queue_.push_back(number);
  result_.bytes_out += state.bytes;
  if (state.fired) AskForCopyIn(number);
  for (int32_t follower : state.followers) {
    if (states_[follower].fired) AskForCopyIn(follower);
  }
}

void Replay::AskForCopyIn(int32_t number) {
  SwapState& state = states_[number];
  const SwapState& leader = LeaderOf(number);
  if (!leader.out_scheduled || state.in_scheduled) return;
  state.in_scheduled = true;
  joins_.emplace(std::max(now_, leader.times.out_end_ns), number);
}

void Replay::StartCopyIn() {
  in_active_ = in_queue_.front();
  in_queue_.pop_front();
  SwapState& state = states_[in_active_];
  state.times.in_start_ns = now_;
  state.times.in_end_ns = now_ + link_.InDuration(state.bytes);
  result_.bytes_in += state.bytes;
  ChangeLoad(state.absence.buffer, state.bytes);
}

void Replay::StartCopiesIn() {
  if (allocation_waits_ || in_active_ != kNone || in_queue_.empty()) return;
  if (!WouldExceed(states_[in_queue_.front()].bytes)) StartCopyIn();
}

void Replay::ReleaseIfDone(SwapState& state) {
  if (!state.after_ended || !states_[state.leader].out_done || state.times.released_ns >= 0) return;
  state.times.released_ns = now_;
  ChangeLoad(state.absence.buffer, -state.bytes);
}

Nanoseconds Replay::NextOutEnd() const {
  return outs_ended_ < out_queue_.size() ? states_[out_queue_[outs_ended_]].times.out_end_ns
                                         : kNever;
}

bool Replay::NextCopyEvent(Nanoseconds until_ns) {
  const Nanoseconds out_end = NextOutEnd();
  const Nanoseconds in_end = in_active_ == kNone ? kNever : states_[in_active_].times.in_end_ns;
  const Nanoseconds join = joins_.empty() ? kNever : joins_.top().first;
  const Nanoseconds next = std::min({out_end, in_end, join});
  if (next == kNever || next > until_ns) return false;
  now_ = std::max(now_, next);
  if (out_end == next) {
    SwapState& leader = states_[out_queue_[outs_ended_++]];
    leader.out_done = true;
    ReleaseIfDone(leader);
    for (int32_t follower : leader.followers) ReleaseIfDone(states_[follower]);
  } else if (in_end == next) {
    states_[in_active_].in_done = true;
    --LeaderOf(in_active_).copies_in_left;
    in_active_ = kNone;
  } else {
    in_queue_.push_back(joins_.top().second);
    joins_.pop();
  }
  return true;
}

void Replay::Advance(Nanoseconds until_ns) {
  StartCopiesIn();
  while (NextCopyEvent(until_ns)) StartCopiesIn();
}

void Replay::ChangeLoad(int32_t buffer, Bytes delta) {
  load_ += delta;
  result_.load_changes.push_back({now_, buffer, delta});
  if (load_ > result_.peak_bytes) {
    result_.peak_bytes = load_;
    result_.peak_ns = now_;
    result_.peak_op = last_started_op_;
    peak_change_ = result_.load_changes.size();
  }
}

void Replay::Stalled(int32_t op, StallCause cause, int32_t number, Nanoseconds ns) {
  if (ns == 0) return;
  shift_ += ns;
  result_.stalls.push_back({op, cause, states_[number].given_place, ns});
}

void Replay::FinishPeakHolders() {
  constexpr size_t kMaxHolders = 5;
  std::vector<Bytes> held(data_.buffer_bytes.size(), 0);
  for (size_t i = 0; i < peak_change_; ++i) {
    held[result_.load_changes[i].buffer] += result_.load_changes[i].delta;
  }
  std::vector<std::pair<int32_t, Bytes>>& holders = result_.peak_holders;
  for (size_t buffer = 0; buffer < held.size(); ++buffer) {
    if (held[buffer] > 0) holders.emplace_back(static_cast<int32_t>(buffer), held[buffer]);
  }
  const size_t kept = std::min(kMaxHolders, holders.size());
  std::partial_sort(holders.begin(), holders.begin() + static_cast<std::ptrdiff_t>(kept),
                    holders.end(), [](const auto& a, const auto& b) {
                      return std::tie(b.second, a.first) < std::tie(a.second, b.first);
                    });
  holders.resize(kept);
}

void Replay::FinishHostPeak() {
  // A far copy lives from the start of its copy-out to the end of its last copy-in.
  std::vector<Nanoseconds> far_end(states_.size(), 0);
  for (const SwapState& state : states_) {
    far_end[state.leader] = std::max(far_end[state.leader], state.times.in_end_ns);
  }
  std::vector<std::pair<Nanoseconds, Bytes>> changes;  // at equal times frees come first
  for (size_t number = 0; number < states_.size(); ++number) {
    const SwapState& state = states_[number];
    if (state.leader != static_cast<int32_t>(number)) continue;
    changes.emplace_back(state.times.out_start_ns, state.bytes);
    changes.emplace_back(far_end[number], -state.bytes);
  }
  std::sort(changes.begin(), changes.end());
  Bytes far_bytes = 0;
  for (const auto& [time_ns, delta] : changes) {
    far_bytes += delta;
    result_.host_peak_bytes = std::max(result_.host_peak_bytes, far_bytes);
  }
}

void CheckTimeline(const TimelineData& data) {
  const size_t num_ops = data.op_start_ns.size();
  const size_t num_buffers = data.buffer_bytes.size();
  Require(data.op_end_ns.size() == num_ops, "op_start_ns and op_end_ns differ in length");
  Require(data.buffer_alloc_ns.size() == num_buffers && data.buffer_free_ns.size() == num_buffers,
          "buffer_bytes, buffer_alloc_ns and buffer_free_ns differ in length");
  for (size_t i = 0; i < num_ops; ++i) {
    Require(data.op_end_ns[i] >= data.op_start_ns[i], "op " + Number(i) + " ends before it starts");
    Require(i == 0 || data.op_start_ns[i] >= data.op_start_ns[i - 1],
            "op " + Number(i) + " starts before the op that precedes it");
  }
  for (size_t i = 0; i < num_buffers; ++i) {
    Require(data.buffer_free_ns[i] >= data.buffer_alloc_ns[i],
            "buffer " + Number(i) + " is freed before it is allocated");
  }
}

void CheckAbsences(const Timeline& timeline) {
  const TimelineData& data = timeline.data();
  const auto num_ops = static_cast<int32_t>(data.op_start_ns.size());
  const auto num_absences = static_cast<int32_t>(data.absences.size());
  for (int32_t i = 0; i < num_absences; ++i) {
    const Absence& absence = data.absences[i];
    const std::string name = "absence " + Number(i);
    Require(absence.buffer >= 0 && absence.buffer < static_cast<int32_t>(data.buffer_bytes.size()),
            name + " names buffer " + Number(absence.buffer) + " of " +
                Number(data.buffer_bytes.size()));
    for (int32_t op : {absence.after_op, absence.before_op}) {
      Require(op >= 0 && op < num_ops, name + " names op " + Number(op) + " of " + Number(num_ops));
    }
    Require(absence.producer_op >= -1 && absence.producer_op < num_ops,
            name + " names op " + Number(absence.producer_op) + " of " + Number(num_ops));
    Require(absence.far_copy >= 0 && absence.far_copy < num_absences,
            name + " names far copy " + Number(absence.far_copy) + " of " + Number(num_absences));
    Require(timeline.end_position(absence.after_op) < timeline.start_position(absence.before_op),
            name + " ends before it begins");
    Require(absence.producer_op == kNone || timeline.end_position(absence.producer_op) <=
                                                timeline.end_position(absence.after_op),
            name + " begins before its buffer is produced");
  }
}

}  // namespace

Nanoseconds LinkSpeeds::OutDuration(Bytes bytes) const {
  return CopyDuration(bytes, out_bytes_per_s, out_latency_ns);
}

Nanoseconds LinkSpeeds::InDuration(Bytes bytes) const {
  return CopyDuration(bytes, in_bytes_per_s, in_latency_ns);
}

Timeline::Timeline(TimelineData data) : data_(std::move(data)) {
  CheckTimeline(data_);

  struct Entry {
    Nanoseconds time_ns;
    int8_t turn;  // at equal times
    int32_t index;
    int8_t part;  // an op's start, then its end
    EventKind kind;
  };
  std::vector<Entry> entries;
  const auto num_ops = static_cast<int32_t>(data_.op_start_ns.size());
  const auto num_buffers = static_cast<int32_t>(data_.buffer_bytes.size());
  entries.reserve(2 * static_cast<size_t>(num_ops + num_buffers));
  for (int32_t i = 0; i < num_ops; ++i) {
    const bool takes_time = data_.op_end_ns[i] > data_.op_start_ns[i];
    entries.push_back({data_.op_start_ns[i], 2, i, 0, EventKind::kOpStart});
    entries.push_back(
        {data_.op_end_ns[i], static_cast<int8_t>(takes_time ? 1 : 2), i, 1, EventKind::kOpEnd});
  }
  for (int32_t i = 0; i < num_buffers; ++i) {
    const Nanoseconds alloc_ns = std::max<Nanoseconds>(data_.buffer_alloc_ns[i], 0);
    entries.push_back({alloc_ns, 3, i, 0, EventKind::kAlloc});
    if (data_.buffer_free_ns[i] == kOutlivesStep) continue;
    const Nanoseconds free_ns = std::max<Nanoseconds>(data_.buffer_free_ns[i], 0);
    entries.push_back(
        {free_ns, static_cast<int8_t>(free_ns > alloc_ns ? 0 : 4), i, 0, EventKind::kFree});
  }
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    return std::tie(a.time_ns, a.turn, a.index, a.part) <
           std::tie(b.time_ns, b.turn, b.index, b.part);
  });

  events_.reserve(entries.size());
  start_position_.resize(num_ops);
  end_position_.resize(num_ops);
  for (const Entry& entry : entries) {
    const auto position = static_cast<int32_t>(events_.size());
    if (entry.kind == EventKind::kOpStart) start_position_[entry.index] = position;
    if (entry.kind == EventKind::kOpEnd) end_position_[entry.index] = position;
    events_.push_back({entry.time_ns, entry.kind, entry.index});
  }
  CheckAbsences(*this);
}

SimResult Simulate(const Timeline& timeline, const std::vector<Swap>& swaps, const LinkSpeeds& link,
                   std::optional<Bytes> budget_bytes) {
  Require(link.out_bytes_per_s > 0 && link.in_bytes_per_s > 0, "a link's speed must be positive");
  Require(link.out_latency_ns >= 0 && link.in_latency_ns >= 0,
          "a link's latency must not be negative");
  return Replay(timeline, swaps, link, budget_bytes).Run();
}

const char* StallCauseName(StallCause cause) {
  switch (cause) {
    case StallCause::kGate:
      return "gate";
    case StallCause::kSwapIn:
      return "swap-in";
    case StallCause::kBudget:
      return "budget";
  }
  return "unknown";
}

}  // namespace tfswap
