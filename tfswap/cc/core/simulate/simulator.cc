// The event loop of the simulator, in one file so that the compiler can inline it: planners run it
// thousands of times. Work that is done once per run is in moves.h.

#include "core/simulate/simulator.h"

#include <algorithm>
#include <deque>
#include <functional>
#include <queue>
#include <string>
#include <tuple>

#include "core/simulate/moves.h"

namespace tfswap {
namespace {

// A copy-out that was still running when the previous step ended.
struct UnfinishedCopy {
  int32_t place;  // of its swap
  int32_t section;
  Nanoseconds end_ns;  // from the start of this step
};

// One run of the simulator.
class Replay {
 public:
  Replay(const Timeline& timeline, const std::vector<Swap>& swaps, const std::vector<Tier>& tiers,
         std::optional<Bytes> budget_bytes, const std::vector<OrderEdge>& order,
         const std::vector<UnfinishedCopy>& unfinished_copies);

  SimResult Run();
  // Call this after Run().
  std::vector<UnfinishedCopy> UnfinishedCopies() const;

 private:
  // The effect of an event on a move, in the order in which the effects of one event are handled.
  enum class Relation : uint8_t { kProduced, kAbsentAfter, kTriggered, kNeeded, kGated, kOrdered };
  struct MoveEvent {
    int32_t position;
    Relation relation;
    int32_t move;  // kOrdered: none
    bool operator<(const MoveEvent& other) const {
      return std::tie(position, relation, move) <
             std::tie(other.position, other.relation, other.move);
    }
  };
  using MoveEvents = std::vector<MoveEvent>::const_iterator;

  struct Queues {
    std::vector<int32_t> outs;  // all requests so far, with ascending end times
    size_t outs_ended = 0;
    std::deque<int32_t> ins;
    int32_t in_active = kNone;
  };

  // Ordered by time. At equal times copies-out end first, then copies-in, then new ones join the
  // queues by number.
  using Join = std::pair<Nanoseconds, int32_t>;

  void ListMoveEvents();
  void ResumeCopies(const std::vector<UnfinishedCopy>& unfinished_copies);
  void ReadOrder(const std::vector<OrderEdge>& order);

  // Advance to the event at `position`: copies start and end; no other event has an effect on
  // moves.
  void SkipTo(int32_t position);
  void PassEvents(int32_t position);
  // Handle the event at events_done_ and its effects on moves.
  void Handle(MoveEvents begin, MoveEvents end);
  void OnAlloc(Bytes bytes);
  void OnOpStart(int32_t op, MoveEvents begin, MoveEvents end);
  void OnOpEnd(MoveEvents begin, MoveEvents end);

  void RequestCopyOut(int32_t number);
  void RequestCopyIn(int32_t number);
  void StartCopyIn(Queues* queues);
  void ReleaseIfDone(Move* move);

  // Handle the next event of a copy if it is not after `until_ns`; return whether there was one.
  bool NextCopyEvent(Nanoseconds until_ns);
  void Advance(Nanoseconds until_ns);
  void StartCopiesIn();
  // The move whose copy-out ends next; kNone if there is none.
  int32_t NextOut() const;
  // The move whose copy-in ends next; kNone if there is none.
  int32_t NextIn() const;
  Nanoseconds NextCopyEventAt() const;

  void ChangeLoad(int32_t buffer, Bytes delta);
  void UpdatePeak(Bytes load, Nanoseconds time_ns, int32_t events);
  Bytes Load() const { return timeline_.LoadBefore(events_done_) + swapped_; }
  void AddStall(int32_t op, StallCause cause, int32_t place, Nanoseconds since_ns);
  Queues& QueuesOf(const Move& move) { return queues_[move.swap.tier]; }
  bool WouldExceed(Bytes bytes) const { return budget_bytes_ && Load() + bytes > *budget_bytes_; }

  const Timeline& timeline_;
  const TimelineData& data_;
  const std::vector<Tier>& tiers_;
  const std::optional<Bytes> budget_bytes_;
  const size_t num_swaps_;

  std::vector<Move> moves_;
  std::vector<MoveEvent> move_events_;  // in replay order

  std::vector<std::vector<int32_t>> ops_before_;  // by op; empty without order edges
  std::vector<Nanoseconds> actual_end_ns_;        // of ops that other ops are ordered after

  Nanoseconds now_ = 0;
  Nanoseconds shift_ = 0;
  int32_t events_done_ = 0;
  Bytes swapped_ = 0;  // net change of the load by swaps so far

  std::vector<Queues> queues_;
  std::vector<int32_t> out_rank_;  // by move: number of copies-out requested before it
  int32_t outs_requested_ = 0;
  std::priority_queue<Join, std::vector<Join>, std::greater<Join>> joins_;
  bool allocation_waits_ = false;

  SimResult result_;
};

Replay::Replay(const Timeline& timeline, const std::vector<Swap>& swaps,
               const std::vector<Tier>& tiers, std::optional<Bytes> budget_bytes,
               const std::vector<OrderEdge>& order,
               const std::vector<UnfinishedCopy>& unfinished_copies)
    : timeline_(timeline),
      data_(timeline.data()),
      tiers_(tiers),
      budget_bytes_(budget_bytes),
      num_swaps_(swaps.size()),
      moves_(MakeMoves(timeline, swaps, tiers)),
      queues_(tiers.size()),
      out_rank_(moves_.size(), 0) {
  ReadOrder(order);
  ListMoveEvents();
  result_.peak_bytes = data_.resident_bytes;
  result_.swap_changes.reserve(2 * moves_.size());
  ResumeCopies(unfinished_copies);
}

void Replay::ListMoveEvents() {
  move_events_.reserve(5 * moves_.size());
  for (auto number = 0; number < static_cast<int32_t>(moves_.size()); ++number) {
    const Move& move = moves_[number];
    const auto at_start = [&](int32_t op, Relation relation) {
      if (op != kNone) move_events_.push_back({timeline_.start_position(op), relation, number});
    };
    const auto at_end = [&](int32_t op, Relation relation) {
      if (op != kNone) move_events_.push_back({timeline_.end_position(op), relation, number});
    };
    if (move.copies_out) at_end(move.absence.producer_op, Relation::kProduced);
    if (move.role != Role::kArrives) {
      at_end(move.absence.after_op, Relation::kAbsentAfter);
      at_start(move.swap.gate_op, Relation::kGated);
    }
    if (move.role != Role::kDeparts) {
      at_end(move.swap.trigger_op, Relation::kTriggered);
      at_start(move.absence.before_op, Relation::kNeeded);
    }
  }
  for (int32_t op = 0; op < static_cast<int32_t>(ops_before_.size()); ++op) {
    if (ops_before_[op].empty() && actual_end_ns_[op] == kNever) continue;
    move_events_.push_back({timeline_.start_position(op), Relation::kOrdered, kNone});
  }
  std::sort(move_events_.begin(), move_events_.end());
}

void Replay::ReadOrder(const std::vector<OrderEdge>& order) {
  if (order.empty()) return;
  ops_before_.resize(timeline_.num_ops());
  actual_end_ns_.assign(timeline_.num_ops(), kNever);
  for (const OrderEdge& edge : order) {
    for (int32_t op : {edge.before, edge.after}) {
      Require(op >= 0 && op < timeline_.num_ops(),
              "an order edge names op " + Number(op) + " of " + Number(timeline_.num_ops()));
    }
    Require(timeline_.start_position(edge.before) < timeline_.start_position(edge.after),
            "op " + Number(edge.after) + " cannot wait for op " + Number(edge.before) +
                ", which starts later");
    ops_before_[edge.after].push_back(edge.before);
    actual_end_ns_[edge.before] = 0;
  }
}

void Replay::ResumeCopies(const std::vector<UnfinishedCopy>& unfinished_copies) {
  for (const UnfinishedCopy& unfinished : unfinished_copies) {
    for (int32_t number = 0; number < static_cast<int32_t>(moves_.size()); ++number) {
      Move& move = moves_[number];
      if (move.role != Role::kArrives || move.place != unfinished.place ||
          move.section != unfinished.section) {
        continue;
      }
      move.out_done = false;
      move.times.out_end_ns = unfinished.end_ns;
      out_rank_[number] = outs_requested_++;
      QueuesOf(move).outs.push_back(number);
    }
  }
  for (Move& move : moves_) {
    if (move.role == Role::kArrives) ReleaseIfDone(&move);
  }
  for (int32_t number = 0; number < static_cast<int32_t>(moves_.size()); ++number) {
    Move& move = moves_[number];
    if (move.role == Role::kArrives) {
      if (move.fired) RequestCopyIn(number);
      for (int32_t m = move.follower; m != kNone; m = moves_[m].next_follower) {
        if (moves_[m].fired) RequestCopyIn(m);
      }
    } else if (move.copies_out && move.absence.producer_op == kNone) {
      RequestCopyOut(number);
    }
  }
}

SimResult Replay::Run() {
  const auto num_events = static_cast<int32_t>(timeline_.events().size());
  MoveEvents begin = move_events_.begin();
  while (begin != move_events_.end()) {
    MoveEvents end = begin;
    while (end != move_events_.end() && end->position == begin->position) ++end;
    SkipTo(begin->position);
    Handle(begin, end);
    begin = end;
  }
  SkipTo(num_events);
  Advance(data_.step_ns + shift_);
  result_.step_ns = data_.step_ns + shift_;
  result_.stall_ns = shift_;
  result_.swap_times = TimesOfSwaps(moves_, num_swaps_);
  result_.far_peak_bytes = FarPeaks(moves_, tiers_.size(), result_.step_ns);
  result_.fits = !budget_bytes_ || result_.peak_bytes <= *budget_bytes_;
  for (size_t tier = 0; tier < tiers_.size(); ++tier) {
    if (result_.far_peak_bytes[tier] > tiers_[tier].capacity_bytes) result_.fits = false;
  }
  return std::move(result_);
}

void Replay::SkipTo(int32_t position) {
  const std::vector<Timeline::Event>& events = timeline_.events();
  if (budget_bytes_) {
    while (events_done_ < position) Handle(move_events_.end(), move_events_.end());
    return;
  }
  while (events_done_ < position) {
    const Nanoseconds copy = NextCopyEventAt();
    if (copy > events[position - 1].time_ns + shift_) {
      PassEvents(position);
      return;
    }
    // Events at the same time come after the copy.
    const auto next = std::partition_point(
        events.begin() + events_done_, events.begin() + position,
        [&](const Timeline::Event& event) { return event.time_ns + shift_ < copy; });
    PassEvents(static_cast<int32_t>(next - events.begin()));
    Advance(copy);
  }
}

void Replay::PassEvents(int32_t position) {
  if (position == events_done_) return;
  const int32_t fullest = timeline_.load().ArgMax(events_done_, position);
  UpdatePeak(timeline_.load().values()[fullest] + swapped_,
             timeline_.events()[fullest].time_ns + shift_, fullest + 1);
  events_done_ = position;
}

void Replay::Handle(MoveEvents begin, MoveEvents end) {
  const Timeline::Event& event = timeline_.events()[events_done_];
  Advance(event.time_ns + shift_);
  now_ = event.time_ns + shift_;
  switch (event.kind) {
    case Timeline::EventKind::kFree:
      break;
    case Timeline::EventKind::kOpEnd:
      OnOpEnd(begin, end);
      break;
    case Timeline::EventKind::kOpStart:
      OnOpStart(event.index, begin, end);
      break;
    case Timeline::EventKind::kAlloc:
      OnAlloc(data_.buffer_bytes[event.index]);
      break;
  }
  ++events_done_;
  UpdatePeak(Load(), now_, events_done_);
  Advance(now_);
}

std::vector<UnfinishedCopy> Replay::UnfinishedCopies() const {
  std::vector<std::pair<int32_t, UnfinishedCopy>> found;  // with their ranks
  for (int32_t number = 0; number < static_cast<int32_t>(moves_.size()); ++number) {
    const Move& move = moves_[number];
    if (move.role != Role::kDeparts || !move.out_requested || move.out_done) continue;
    found.push_back({out_rank_[number],
                     {move.place, move.section, move.times.out_end_ns - (data_.step_ns + shift_)}});
  }
  std::sort(found.begin(), found.end(),
            [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<UnfinishedCopy> unfinished_copies;
  for (const auto& [rank, unfinished] : found) unfinished_copies.push_back(unfinished);
  return unfinished_copies;
}

void Replay::OnAlloc(Bytes bytes) {
  if (!budget_bytes_) return;
  allocation_waits_ = true;
  for (int32_t out = NextOut(); WouldExceed(bytes) && out != kNone; out = NextOut()) {
    const Nanoseconds since = now_;
    Advance(moves_[out].times.out_end_ns);
    AddStall(timeline_.LastStarted(events_done_), StallCause::kBudget, moves_[out].place, since);
  }
  allocation_waits_ = false;
}

void Replay::OnOpStart(int32_t op, MoveEvents begin, MoveEvents end) {
  for (MoveEvents it = begin; it != end && it->relation == Relation::kNeeded; ++it) {
    if (!moves_[it->move].fired) {
      moves_[it->move].fired = true;
      RequestCopyIn(it->move);
    }
  }
  Advance(now_);
  for (MoveEvents it = begin; it != end; ++it) {
    if (it->relation != Relation::kGated) continue;
    const Nanoseconds since = now_;
    const Move& leader = moves_[moves_[it->move].leader];
    if (!leader.out_done) Advance(leader.times.out_end_ns);
    AddStall(op, StallCause::kGate, moves_[it->move].place, since);
  }
  for (MoveEvents it = begin; it != end && it->relation == Relation::kNeeded; ++it) {
    const Nanoseconds since = now_;
    while (!moves_[it->move].in_done) {
      StartCopiesIn();
      // If no copy is left to wait for, only the budget holds back the head of the queue.
      if (!NextCopyEvent(kNever)) StartCopyIn(&QueuesOf(moves_[it->move]));
    }
    Advance(now_);
    AddStall(op, StallCause::kSwapIn, moves_[it->move].place, since);
  }
  if (ops_before_.empty()) return;
  for (int32_t before : ops_before_[op]) {
    const Nanoseconds since = now_;
    if (actual_end_ns_[before] > now_) Advance(actual_end_ns_[before]);
    now_ = std::max(now_, actual_end_ns_[before]);
    AddStall(op, StallCause::kOrder, kNone, since);
  }
  if (actual_end_ns_[op] != kNever) {
    actual_end_ns_[op] = now_ + data_.op_end_ns[op] - data_.op_start_ns[op];
  }
}

void Replay::OnOpEnd(MoveEvents begin, MoveEvents end) {
  for (MoveEvents it = begin; it != end; ++it) {
    Move& move = moves_[it->move];
    if (it->relation == Relation::kProduced) {
      RequestCopyOut(it->move);
    } else if (it->relation == Relation::kAbsentAfter) {
      move.after_ended = true;
      ReleaseIfDone(&move);
    } else if (it->relation == Relation::kTriggered && !move.fired) {
      move.fired = true;
      RequestCopyIn(it->move);
    }
  }
}

void Replay::RequestCopyOut(int32_t number) {
  Move& move = moves_[number];
  std::vector<int32_t>& outs = QueuesOf(move).outs;
  const Nanoseconds link_free = outs.empty() ? 0 : moves_[outs.back()].times.out_end_ns;
  move.times.out_start_ns = std::max(now_, link_free);
  move.times.out_end_ns = move.times.out_start_ns + move.out_ns;
  move.out_requested = true;
  out_rank_[number] = outs_requested_++;
  outs.push_back(number);
  result_.bytes_out += move.far_bytes;
  if (move.role == Role::kDeparts) return;
  if (move.fired) RequestCopyIn(number);
  for (int32_t m = move.follower; m != kNone; m = moves_[m].next_follower) {
    if (moves_[m].fired) RequestCopyIn(m);
  }
}

void Replay::RequestCopyIn(int32_t number) {
  Move& move = moves_[number];
  const Move& leader = moves_[move.leader];
  if (!leader.out_requested || move.in_requested || move.role == Role::kDeparts) return;
  move.in_requested = true;
  joins_.emplace(std::max(now_, leader.times.out_end_ns), number);
}

void Replay::StartCopyIn(Queues* queues) {
  queues->in_active = queues->ins.front();
  queues->ins.pop_front();
  Move& move = moves_[queues->in_active];
  move.times.in_start_ns = now_;
  move.times.in_end_ns = now_ + move.in_ns;
  result_.bytes_in += move.far_bytes;
  ChangeLoad(move.absence.buffer, move.bytes);
}

void Replay::StartCopiesIn() {
  if (allocation_waits_) return;
  for (Queues& queues : queues_) {
    if (queues.in_active != kNone || queues.ins.empty()) continue;
    if (!WouldExceed(moves_[queues.ins.front()].bytes)) StartCopyIn(&queues);
  }
}

void Replay::ReleaseIfDone(Move* move) {
  if (!move->after_ended || !moves_[move->leader].out_done || move->times.released_ns >= 0) return;
  move->times.released_ns = now_;
  ChangeLoad(move->absence.buffer, -move->bytes);
}

int32_t Replay::NextOut() const {
  int32_t next = kNone;
  for (const Queues& queues : queues_) {
    if (queues.outs_ended == queues.outs.size()) continue;
    const int32_t out = queues.outs[queues.outs_ended];
    if (next == kNone || std::make_pair(moves_[out].times.out_end_ns, out_rank_[out]) <
                             std::make_pair(moves_[next].times.out_end_ns, out_rank_[next])) {
      next = out;
    }
  }
  return next;
}

int32_t Replay::NextIn() const {
  int32_t next = kNone;
  for (const Queues& queues : queues_) {
    const int32_t in = queues.in_active;
    if (in == kNone) continue;
    if (next == kNone || std::make_pair(moves_[in].times.in_end_ns, in) <
                             std::make_pair(moves_[next].times.in_end_ns, next)) {
      next = in;
    }
  }
  return next;
}

Nanoseconds Replay::NextCopyEventAt() const {
  const int32_t out = NextOut();
  const int32_t in = NextIn();
  return std::min({out == kNone ? kNever : moves_[out].times.out_end_ns,
                   in == kNone ? kNever : moves_[in].times.in_end_ns,
                   joins_.empty() ? kNever : joins_.top().first});
}

bool Replay::NextCopyEvent(Nanoseconds until_ns) {
  const Nanoseconds next = NextCopyEventAt();
  if (next == kNever || next > until_ns) return false;
  now_ = std::max(now_, next);
  const int32_t out = NextOut();
  const int32_t in = NextIn();
  if (out != kNone && moves_[out].times.out_end_ns == next) {
    Move& leader = moves_[out];
    ++QueuesOf(leader).outs_ended;
    leader.out_done = true;
    ReleaseIfDone(&leader);
    for (int32_t m = leader.follower; m != kNone; m = moves_[m].next_follower) {
      ReleaseIfDone(&moves_[m]);
    }
  } else if (in != kNone && moves_[in].times.in_end_ns == next) {
    moves_[in].in_done = true;
    QueuesOf(moves_[in]).in_active = kNone;
  } else {
    const int32_t joining = joins_.top().second;
    joins_.pop();
    QueuesOf(moves_[joining]).ins.push_back(joining);
  }
  return true;
}

void Replay::Advance(Nanoseconds until_ns) {
  StartCopiesIn();
  while (NextCopyEvent(until_ns)) StartCopiesIn();
}

void Replay::ChangeLoad(int32_t buffer, Bytes delta) {
  swapped_ += delta;
  result_.swap_changes.push_back({events_done_, {now_, buffer, delta}});
  UpdatePeak(Load(), now_, events_done_);
}

void Replay::UpdatePeak(Bytes load, Nanoseconds time_ns, int32_t events) {
  if (load <= result_.peak_bytes) return;
  result_.peak_bytes = load;
  result_.peak_ns = time_ns;
  result_.peak_events = events;
  result_.peak_changes = result_.swap_changes.size();
}

void Replay::AddStall(int32_t op, StallCause cause, int32_t place, Nanoseconds since_ns) {
  if (now_ == since_ns) return;
  shift_ += now_ - since_ns;
  result_.stalls.push_back({op, cause, place, now_ - since_ns});
  result_.shifts.push_back({events_done_, shift_});
}

}  // namespace

SimResult Simulate(const Timeline& timeline, const std::vector<Swap>& swaps,
                   const std::vector<Tier>& tiers, std::optional<Bytes> budget_bytes,
                   const std::vector<OrderEdge>& order) {
  Require(!tiers.empty(), "at least one tier is required");
  for (const Tier& tier : tiers) {
    Require(tier.out_bytes_per_s > 0 && tier.in_bytes_per_s > 0, "a link's speed must be positive");
    Require(tier.out_latency_ns >= 0 && tier.in_latency_ns >= 0,
            "a link's latency must not be negative");
  }
  Replay replay(timeline, swaps, tiers, budget_bytes, order, {});
  SimResult result = replay.Run();
  const std::vector<UnfinishedCopy> unfinished_copies = replay.UnfinishedCopies();
  if (unfinished_copies.empty()) return result;
  return Replay(timeline, swaps, tiers, budget_bytes, order, unfinished_copies).Run();
}

const char* StallCauseName(StallCause cause) {
  switch (cause) {
    case StallCause::kGate:
      return "gate";
    case StallCause::kSwapIn:
      return "swap-in";
    case StallCause::kBudget:
      return "budget";
    case StallCause::kOrder:
      return "order";
  }
  return "unknown";
}

}  // namespace tfswap
