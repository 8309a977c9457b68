#include "core/simulator.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <functional>
#include <queue>
#include <tuple>

namespace tfswap {
namespace {

constexpr int32_t kNone = -1;
constexpr Nanoseconds kNever = std::numeric_limits<int64_t>::max();

Nanoseconds CopyDuration(Bytes bytes, double bytes_per_s, Nanoseconds latency_ns) {
  return latency_ns +
         static_cast<Nanoseconds>(std::ceil(static_cast<double>(bytes) * 1e9 / bytes_per_s));
}

// The part of `total` that falls to piece `piece` of `pieces`.
int64_t Share(int64_t total, int32_t piece, int32_t pieces) {
  return total * (piece + 1) / pieces - total * piece / pieces;
}

// For each op, the moves that have something to do with it, in the order in which they are kept.
class MovesOfOp {
 public:
  MovesOfOp(int32_t num_ops, size_t num_moves) : first_(num_ops, kNone), next_(num_moves, kNone) {}

  // To be called with falling numbers.
  void AddInFront(int32_t op, int32_t move) {
    if (op == kNone) return;
    next_[move] = first_[op];
    first_[op] = move;
  }
  int32_t First(int32_t op) const { return first_[op]; }
  int32_t Next(int32_t move) const { return next_[move]; }

 private:
  std::vector<int32_t> first_;
  std::vector<int32_t> next_;
};

// A copy-out that the step before had not ended.
struct Leftover {
  int32_t place;  // of its swap
  int32_t section;
  Nanoseconds end_ns;  // from the step's start
};

// One run of the simulator. A move is one section of one swap; a swap across the step's end makes
// two: what comes back in this step, and what leaves in it. Moves are numbered: those that come
// back from the step before, then all others by absence, so that the order in which swaps are given
// does not matter.
class Replay {
 public:
  Replay(const Timeline& timeline, const std::vector<Swap>& swaps, const std::vector<Tier>& tiers,
         std::optional<Bytes> budget_bytes, const std::vector<OrderEdge>& order,
         const std::vector<Leftover>& leftovers);

  SimResult Run();
  // To be asked after Run().
  std::vector<Leftover> Leftovers() const;

 private:
  enum class Role : uint8_t { kWithinStep, kArrives, kDeparts };

  struct Move {
    Swap swap;
    Absence absence;
    Role role;
    int32_t place;    // of its swap in the caller's list
    int32_t section;  // of its swap
    Bytes bytes;
    Bytes far_bytes;
    Nanoseconds out_ns;
    Nanoseconds in_ns;
    int32_t leader;  // the move whose copy-out this one waits for; itself in the common case
    bool copies_out = false;
    bool out_asked = false;
    bool out_done = false;
    bool after_ended = false;
    bool fired = false;     // its trigger has ended
    bool in_asked = false;  // the moment of joining the in queue is known
    bool in_done = false;
    SwapTimes times;
    std::vector<int32_t> followers;  // of a leader only
  };

  struct Queues {
    std::vector<int32_t> outs;  // all that were ever asked for; their ends ascend
    size_t outs_ended = 0;
    std::deque<int32_t> ins;
    int32_t in_active = kNone;
  };

  // Ordered by time; at equal times copies-out end first, then copies-in, then new ones join the
  // queues by number.
  using Join = std::pair<Nanoseconds, int32_t>;

  void CheckSwaps(const std::vector<Swap>& swaps) const;
  void MakeMoves(const std::vector<Swap>& swaps);
  void AddMoves(const Swap& swap, int32_t place, Role role);
  void FindLeaders();
  void ListByOp();
  void TakeOver(const std::vector<Leftover>& leftovers);
  void ReadOrder(const std::vector<OrderEdge>& order);

  void OnAlloc(int32_t buffer);
  void OnFree(int32_t buffer);
  void OnOpStart(int32_t op);
  void OnOpEnd(int32_t op);

  void AskForCopyOut(int32_t number);
  void AskForCopyIn(int32_t number);
  void StartCopyIn(Queues* queues);
  void ReleaseIfDone(Move* move);

  // Handles the copies' next event if it is not after `until_ns`; says whether there was one.
  bool NextCopyEvent(Nanoseconds until_ns);
  void Advance(Nanoseconds until_ns);
  void StartCopiesIn();
  // The move whose copy-out ends next; kNone: there is none.
  int32_t NextOut() const;

  void ChangeLoad(int32_t buffer, Bytes delta);
  void Stalled(int32_t op, StallCause cause, int32_t place, Nanoseconds since_ns);
  Queues& QueuesOf(const Move& move) { return queues_[move.swap.tier]; }
  bool WouldExceed(Bytes bytes) const { return budget_bytes_ && load_ + bytes > *budget_bytes_; }
  void FinishPeakHolders();
  void FinishSwapTimes();
  void FinishFarPeaks();
  int32_t LastSection(int32_t number) const {
    return number + moves_[number].swap.sections - 1 - moves_[number].section;
  }

  const Timeline& timeline_;
  const TimelineData& data_;
  const std::vector<Tier>& tiers_;
  const std::optional<Bytes> budget_bytes_;
  const size_t num_swaps_;

  std::vector<Move> moves_;
  std::vector<MovesOfOp> by_op_;  // produced, absent after, gated, triggered, needed
  enum { kProduced, kAbsentAfter, kGated, kTriggered, kNeeded, kRelations };

  std::vector<std::vector<int32_t>> ops_before_;  // by op; empty without order edges
  std::vector<Nanoseconds> really_ends_ns_;       // of ops that others are ordered after

  Nanoseconds now_ = 0;
  Nanoseconds shift_ = 0;
  Bytes load_ = 0;
  int32_t last_started_op_ = kNone;

  std::vector<Queues> queues_;
  std::vector<int32_t> out_rank_;  // by move: how many copies-out were asked for before it
  int32_t outs_asked_ = 0;
  std::priority_queue<Join, std::vector<Join>, std::greater<Join>> joins_;
  bool allocation_waits_ = false;

  size_t peak_change_ = 0;  // how many load changes led to the peak
  SimResult result_;
};

Replay::Replay(const Timeline& timeline, const std::vector<Swap>& swaps,
               const std::vector<Tier>& tiers, std::optional<Bytes> budget_bytes,
               const std::vector<OrderEdge>& order, const std::vector<Leftover>& leftovers)
    : timeline_(timeline),
      data_(timeline.data()),
      tiers_(tiers),
      budget_bytes_(budget_bytes),
      num_swaps_(swaps.size()),
      queues_(tiers.size()) {
  CheckSwaps(swaps);
  MakeMoves(swaps);
  FindLeaders();
  ListByOp();
  ReadOrder(order);
  load_ = data_.resident_bytes;
  result_.peak_bytes = load_;
  result_.resident_bytes = load_;
  result_.load_changes.reserve(2 * (data_.buffer_bytes.size() + moves_.size()));
  TakeOver(leftovers);
}

void Replay::CheckSwaps(const std::vector<Swap>& swaps) const {
  const auto num_absences = static_cast<int32_t>(data_.absences.size());
  std::vector<bool> taken(data_.absences.size(), false);
  for (const Swap& swap : swaps) {
    Require(swap.absence >= 0 && swap.absence < num_absences,
            "a swap names absence " + Number(swap.absence) + " of " + Number(num_absences));
    Require(!taken[swap.absence], "absence " + Number(swap.absence) + " is swapped twice");
    taken[swap.absence] = true;
    const std::string name = "the swap of absence " + Number(swap.absence);
    for (int32_t op : {swap.gate_op, swap.trigger_op}) {
      Require(op >= -1 && op < timeline_.num_ops(),
              name + " names " + (op == swap.gate_op ? "gate" : "trigger") + " op " + Number(op) +
                  " of " + Number(timeline_.num_ops()));
    }
    Require(swap.tier >= 0 && swap.tier < static_cast<int32_t>(tiers_.size()),
            name + " names tier " + Number(swap.tier) + " of " +
                Number(static_cast<int64_t>(tiers_.size())));
    Require(swap.sections >= 1, name + " has " + Number(swap.sections) + " sections");
    Require(swap.encode_ns >= 0 && swap.decode_ns >= 0, name + " has a codec of negative time");
    const int32_t producer = data_.absences[swap.absence].producer_op;
    Require(swap.gate_op == kNone || producer == kNone ||
                timeline_.start_position(swap.gate_op) > timeline_.end_position(producer),
            name + " is gated by op " + Number(swap.gate_op) +
                ", which starts before its producer " + Number(producer) + " has ended");
  }
}

void Replay::MakeMoves(const std::vector<Swap>& swaps) {
  std::vector<int32_t> places(swaps.size());
  for (size_t i = 0; i < swaps.size(); ++i) places[i] = static_cast<int32_t>(i);
  std::sort(places.begin(), places.end(),
            [&](int32_t a, int32_t b) { return swaps[a].absence < swaps[b].absence; });
  moves_.reserve(swaps.size());
  auto crosses = [&](int32_t place) {
    return timeline_.CrossesStepEnd(data_.absences[swaps[place].absence]);
  };
  for (int32_t place : places) {
    if (crosses(place)) AddMoves(swaps[place], place, Role::kArrives);
  }
  for (int32_t place : places) {
    AddMoves(swaps[place], place, crosses(place) ? Role::kDeparts : Role::kWithinStep);
  }
  out_rank_.assign(moves_.size(), 0);
}

void Replay::AddMoves(const Swap& swap, int32_t place, Role role) {
  const Tier& tier = tiers_[swap.tier];
  const Absence& absence = data_.absences[swap.absence];
  const Bytes bytes = data_.buffer_bytes[absence.buffer];
  const Bytes far_bytes = swap.far_bytes < 0 ? bytes : swap.far_bytes;
  for (int32_t section = 0; section < swap.sections; ++section) {
    Move move;
    move.swap = swap;
    move.absence = absence;
    move.role = role;
    move.place = place;
    move.section = section;
    move.bytes = Share(bytes, section, swap.sections);
    move.far_bytes = Share(far_bytes, section, swap.sections);
    move.out_ns = tier.OutDuration(move.far_bytes) + Share(swap.encode_ns, section, swap.sections);
    move.in_ns = tier.InDuration(move.far_bytes) + Share(swap.decode_ns, section, swap.sections);
    move.leader = static_cast<int32_t>(moves_.size());
    move.fired = swap.trigger_op == kNone;
    if (role == Role::kArrives) {
      move.after_ended = true;
      move.out_asked = move.out_done = true;
    } else if (role == Role::kDeparts) {
      // What no op of the step writes is in far memory as it is.
      move.copies_out = absence.producer_op != kNone;
      move.out_asked = move.out_done = !move.copies_out;
      move.in_done = true;
    } else {
      move.copies_out = true;
    }
    moves_.push_back(std::move(move));
  }
}

void Replay::FindLeaders() {
  // One tensor can have two far copies: of what the step before made, and of what this one makes.
  std::vector<int32_t> leaders(2 * data_.absences.size(), kNone);
  for (int32_t number = 0; number < static_cast<int32_t>(moves_.size()); ++number) {
    Move& move = moves_[number];
    if (move.role == Role::kDeparts && !move.copies_out) continue;
    const bool made_before = move.role == Role::kArrives || move.absence.producer_op == kNone;
    int32_t& leader = leaders[2 * move.absence.far_copy + (made_before ? 0 : 1)];
    if (leader == kNone || moves_[leader].place == move.place) {
      leader = number;  // the last section is the last to end
      continue;
    }
    move.leader = leader;
    move.copies_out = false;
    moves_[leader].followers.push_back(number);
  }
}

void Replay::ListByOp() {
  by_op_.assign(kRelations, MovesOfOp(timeline_.num_ops(), moves_.size()));
  for (auto number = static_cast<int32_t>(moves_.size()) - 1; number >= 0; --number) {
    const Move& move = moves_[number];
    if (move.copies_out) by_op_[kProduced].AddInFront(move.absence.producer_op, number);
    if (move.role != Role::kArrives) {
      by_op_[kAbsentAfter].AddInFront(move.absence.after_op, number);
      by_op_[kGated].AddInFront(move.swap.gate_op, number);
    }
    if (move.role != Role::kDeparts) {
      by_op_[kTriggered].AddInFront(move.swap.trigger_op, number);
      by_op_[kNeeded].AddInFront(move.absence.before_op, number);
    }
  }
}

void Replay::ReadOrder(const std::vector<OrderEdge>& order) {
  if (order.empty()) return;
  ops_before_.resize(timeline_.num_ops());
  really_ends_ns_.assign(timeline_.num_ops(), kNever);
  for (const OrderEdge& edge : order) {
    for (int32_t op : {edge.before, edge.after}) {
      Require(op >= 0 && op < timeline_.num_ops(),
              "an order edge names op " + Number(op) + " of " + Number(timeline_.num_ops()));
    }
    Require(timeline_.start_position(edge.before) < timeline_.start_position(edge.after),
            "op " + Number(edge.after) + " is to wait for op " + Number(edge.before) +
                ", which starts later");
    ops_before_[edge.after].push_back(edge.before);
    really_ends_ns_[edge.before] = 0;
  }
}

void Replay::TakeOver(const std::vector<Leftover>& leftovers) {
  for (const Leftover& leftover : leftovers) {
    for (int32_t number = 0; number < static_cast<int32_t>(moves_.size()); ++number) {
      Move& move = moves_[number];
      if (move.role != Role::kArrives || move.place != leftover.place ||
          move.section != leftover.section) {
        continue;
      }
      move.out_done = false;
      move.times.out_end_ns = leftover.end_ns;
      out_rank_[number] = outs_asked_++;
      QueuesOf(move).outs.push_back(number);
    }
  }
  for (Move& move : moves_) {
    if (move.role == Role::kArrives) ReleaseIfDone(&move);
  }
  for (int32_t number = 0; number < static_cast<int32_t>(moves_.size()); ++number) {
    Move& move = moves_[number];
    if (move.role == Role::kArrives) {
      if (move.fired) AskForCopyIn(number);
      for (int32_t follower : move.followers) {
        if (moves_[follower].fired) AskForCopyIn(follower);
      }
    } else if (move.copies_out && move.absence.producer_op == kNone) {
      AskForCopyOut(number);
    }
  }
}

SimResult Replay::Run() {
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
  Advance(data_.step_ns + shift_);
  result_.step_ns = data_.step_ns + shift_;
  result_.stall_ns = shift_;
  FinishSwapTimes();
  FinishPeakHolders();
  FinishFarPeaks();
  result_.fits = !budget_bytes_ || result_.peak_bytes <= *budget_bytes_;
  for (size_t tier = 0; tier < tiers_.size(); ++tier) {
    if (result_.far_peak_bytes[tier] > tiers_[tier].capacity_bytes) result_.fits = false;
  }
  return std::move(result_);
}

std::vector<Leftover> Replay::Leftovers() const {
  std::vector<std::pair<int32_t, Leftover>> found;  // with their ranks
  for (int32_t number = 0; number < static_cast<int32_t>(moves_.size()); ++number) {
    const Move& move = moves_[number];
    if (move.role != Role::kDeparts || !move.out_asked || move.out_done) continue;
    found.push_back({out_rank_[number],
                     {move.place, move.section, move.times.out_end_ns - (data_.step_ns + shift_)}});
  }
  std::sort(found.begin(), found.end(),
            [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<Leftover> leftovers;
  for (const auto& [rank, leftover] : found) leftovers.push_back(leftover);
  return leftovers;
}

void Replay::OnAlloc(int32_t buffer) {
  const Bytes bytes = data_.buffer_bytes[buffer];
  allocation_waits_ = true;
  for (int32_t out = NextOut(); WouldExceed(bytes) && out != kNone; out = NextOut()) {
    const Nanoseconds since = now_;
    Advance(moves_[out].times.out_end_ns);
    Stalled(last_started_op_, StallCause::kBudget, moves_[out].place, since);
  }
  allocation_waits_ = false;
  ChangeLoad(buffer, bytes);
}

void Replay::OnFree(int32_t buffer) { ChangeLoad(buffer, -data_.buffer_bytes[buffer]); }

void Replay::OnOpStart(int32_t op) {
  const MovesOfOp& needed = by_op_[kNeeded];
  for (int32_t m = needed.First(op); m != kNone; m = needed.Next(m)) {
    if (!moves_[m].fired) {
      moves_[m].fired = true;
      AskForCopyIn(m);
    }
  }
  Advance(now_);
  for (int32_t m = by_op_[kGated].First(op); m != kNone; m = by_op_[kGated].Next(m)) {
    const Nanoseconds since = now_;
    const Move& leader = moves_[moves_[m].leader];
    if (!leader.out_done) Advance(leader.times.out_end_ns);
    Stalled(op, StallCause::kGate, moves_[m].place, since);
  }
  for (int32_t m = needed.First(op); m != kNone; m = needed.Next(m)) {
    const Nanoseconds since = now_;
    while (!moves_[m].in_done) {
      StartCopiesIn();
      // With nothing left to happen, the budget alone holds the queue's head back.
      if (!NextCopyEvent(kNever)) StartCopyIn(&QueuesOf(moves_[m]));
    }
    Advance(now_);
    Stalled(op, StallCause::kSwapIn, moves_[m].place, since);
  }
  if (!ops_before_.empty()) {
    for (int32_t before : ops_before_[op]) {
      const Nanoseconds since = now_;
      if (really_ends_ns_[before] > now_) Advance(really_ends_ns_[before]);
      now_ = std::max(now_, really_ends_ns_[before]);
      Stalled(op, StallCause::kOrder, kNone, since);
    }
    if (really_ends_ns_[op] != kNever) {
      really_ends_ns_[op] = now_ + data_.op_end_ns[op] - data_.op_start_ns[op];
    }
  }
  last_started_op_ = op;
}

void Replay::OnOpEnd(int32_t op) {
  for (int32_t m = by_op_[kProduced].First(op); m != kNone; m = by_op_[kProduced].Next(m)) {
    AskForCopyOut(m);
  }
  for (int32_t m = by_op_[kAbsentAfter].First(op); m != kNone; m = by_op_[kAbsentAfter].Next(m)) {
    moves_[m].after_ended = true;
    ReleaseIfDone(&moves_[m]);
  }
  for (int32_t m = by_op_[kTriggered].First(op); m != kNone; m = by_op_[kTriggered].Next(m)) {
    if (!moves_[m].fired) {
      moves_[m].fired = true;
      AskForCopyIn(m);
    }
  }
}

void Replay::AskForCopyOut(int32_t number) {
  Move& move = moves_[number];
  std::vector<int32_t>& outs = QueuesOf(move).outs;
  const Nanoseconds link_free = outs.empty() ? 0 : moves_[outs.back()].times.out_end_ns;
  move.times.out_start_ns = std::max(now_, link_free);
  move.times.out_end_ns = move.times.out_start_ns + move.out_ns;
  move.out_asked = true;
  out_rank_[number] = outs_asked_++;
  outs.push_back(number);
  result_.bytes_out += move.far_bytes;
  if (move.role == Role::kDeparts) return;
  if (move.fired) AskForCopyIn(number);
  for (int32_t follower : move.followers) {
    if (moves_[follower].fired) AskForCopyIn(follower);
  }
}

void Replay::AskForCopyIn(int32_t number) {
  Move& move = moves_[number];
  const Move& leader = moves_[move.leader];
  if (!leader.out_asked || move.in_asked || move.role == Role::kDeparts) return;
  move.in_asked = true;
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

bool Replay::NextCopyEvent(Nanoseconds until_ns) {
  const int32_t out = NextOut();
  const Nanoseconds out_end = out == kNone ? kNever : moves_[out].times.out_end_ns;
  Nanoseconds in_end = kNever;
  int32_t in = kNone;
  for (const Queues& queues : queues_) {
    if (queues.in_active == kNone) continue;
    const Nanoseconds end = moves_[queues.in_active].times.in_end_ns;
    if (end < in_end || (end == in_end && queues.in_active < in)) {
      in_end = end;
      in = queues.in_active;
    }
  }
  const Nanoseconds join = joins_.empty() ? kNever : joins_.top().first;
  const Nanoseconds next = std::min({out_end, in_end, join});
  if (next == kNever || next > until_ns) return false;
  now_ = std::max(now_, next);
  if (out_end == next) {
    Move& leader = moves_[out];
    ++QueuesOf(leader).outs_ended;
    leader.out_done = true;
    ReleaseIfDone(&leader);
    for (int32_t follower : leader.followers) ReleaseIfDone(&moves_[follower]);
  } else if (in_end == next) {
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
  load_ += delta;
  result_.load_changes.push_back({now_, buffer, delta});
  if (load_ > result_.peak_bytes) {
    result_.peak_bytes = load_;
    result_.peak_ns = now_;
    result_.peak_op = last_started_op_;
    peak_change_ = result_.load_changes.size();
  }
}

void Replay::Stalled(int32_t op, StallCause cause, int32_t place, Nanoseconds since_ns) {
  if (now_ == since_ns) return;
  shift_ += now_ - since_ns;
  result_.stalls.push_back({op, cause, place, now_ - since_ns});
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

void Replay::FinishSwapTimes() {
  // From the first section's start to the last one's end.
  result_.swap_times.resize(num_swaps_);
  for (const Move& move : moves_) {
    SwapTimes& times = result_.swap_times[move.place];
    if (move.copies_out) {
      if (times.out_start_ns < 0) times.out_start_ns = move.times.out_start_ns;
      times.out_end_ns = std::max(times.out_end_ns, move.times.out_end_ns);
    }
    if (move.role != Role::kArrives) {
      times.released_ns = std::max(times.released_ns, move.times.released_ns);
    }
    if (move.role != Role::kDeparts) {
      if (times.in_start_ns < 0) times.in_start_ns = move.times.in_start_ns;
      times.in_end_ns = std::max(times.in_end_ns, move.times.in_end_ns);
    }
  }
}

void Replay::FinishFarPeaks() {
  // A far copy lives from the start of its copy-out to the end of its last copy-in; one that came
  // from the step before is there at the start, one that stays for the next step at the end.
  std::vector<Nanoseconds> back_ns(moves_.size(), 0);  // by the leader's last section
  for (const Move& move : moves_) {
    Nanoseconds& back = back_ns[LastSection(move.leader)];
    back = std::max(back, move.role == Role::kDeparts ? kNever : move.times.in_end_ns);
  }
  struct Change {
    int32_t tier;
    Nanoseconds time_ns;
    Bytes delta;
  };
  std::vector<Change> changes;
  for (size_t number = 0; number < moves_.size(); ++number) {
    const Move& move = moves_[number];
    if (move.leader != static_cast<int32_t>(number)) continue;
    const bool unchanged = move.absence.producer_op == kNone;
    Nanoseconds from = move.times.out_start_ns;
    Nanoseconds to = back_ns[LastSection(static_cast<int32_t>(number))];
    if (move.role == Role::kArrives) {
      from = 0;
      if (unchanged) to = result_.step_ns;
    } else if (move.role == Role::kDeparts && unchanged) {
      continue;  // counted where it arrives
    }
    changes.push_back({move.swap.tier, from, move.far_bytes});
    changes.push_back({move.swap.tier, to, -move.far_bytes});
  }
  // At equal times frees come first.
  std::sort(changes.begin(), changes.end(), [](const Change& a, const Change& b) {
    return std::tie(a.tier, a.time_ns, a.delta) < std::tie(b.tier, b.time_ns, b.delta);
  });
  result_.far_peak_bytes.assign(tiers_.size(), 0);
  Bytes far_bytes = 0;
  for (size_t i = 0; i < changes.size(); ++i) {
    if (i > 0 && changes[i].tier != changes[i - 1].tier) far_bytes = 0;
    far_bytes += changes[i].delta;
    Bytes& peak = result_.far_peak_bytes[changes[i].tier];
    peak = std::max(peak, far_bytes);
  }
}

}  // namespace

Nanoseconds Tier::OutDuration(Bytes bytes) const {
  return CopyDuration(bytes, out_bytes_per_s, out_latency_ns);
}

Nanoseconds Tier::InDuration(Bytes bytes) const {
  return CopyDuration(bytes, in_bytes_per_s, in_latency_ns);
}

SimResult Simulate(const Timeline& timeline, const std::vector<Swap>& swaps,
                   const std::vector<Tier>& tiers, std::optional<Bytes> budget_bytes,
                   const std::vector<OrderEdge>& order) {
  Require(!tiers.empty(), "there must be a tier");
  for (const Tier& tier : tiers) {
    Require(tier.out_bytes_per_s > 0 && tier.in_bytes_per_s > 0, "a link's speed must be positive");
    Require(tier.out_latency_ns >= 0 && tier.in_latency_ns >= 0,
            "a link's latency must not be negative");
  }
  Replay replay(timeline, swaps, tiers, budget_bytes, order, {});
  SimResult result = replay.Run();
  const std::vector<Leftover> leftovers = replay.Leftovers();
  if (leftovers.empty()) return result;
  return Replay(timeline, swaps, tiers, budget_bytes, order, leftovers).Run();
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
