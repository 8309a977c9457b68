#include "core/simulator.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <functional>
#include <queue>
#include <stdexcept>
#include <string>
#include <tuple>

#include "core/sections.h"

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

[[noreturn]] void Refuse(const std::string& why) { throw std::invalid_argument(why); }

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
    int32_t follower = kNone;       // of a leader: the first move that shares its copy-out
    int32_t next_follower = kNone;  // of a follower: the next one
  };

  // What an event has to do with a move; in the order in which an event's are handled.
  enum class Relation : uint8_t { kProduced, kAbsentAfter, kTriggered, kNeeded, kGated, kOrdered };
  struct Happening {
    int32_t position;
    Relation relation;
    int32_t move;  // kOrdered: none
    bool operator<(const Happening& other) const {
      return std::tie(position, relation, move) <
             std::tie(other.position, other.relation, other.move);
    }
  };
  using Happenings = std::vector<Happening>::const_iterator;

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
  void ListHappenings();
  void TakeOver(const std::vector<Leftover>& leftovers);
  void ReadOrder(const std::vector<OrderEdge>& order);

  // Up to the event at `position`: copies that begin and end, events that nobody waits for.
  void SkipTo(int32_t position);
  void Pass(int32_t position);
  // The event at events_done_, and what it has to do with moves.
  void Handle(Happenings begin, Happenings end);
  void OnAlloc(Bytes bytes);
  void OnOpStart(int32_t op, Happenings begin, Happenings end);
  void OnOpEnd(Happenings begin, Happenings end);

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
  // Likewise for copies-in.
  int32_t NextIn() const;
  Nanoseconds NextCopyEventAt() const;

  void ChangeLoad(int32_t buffer, Bytes delta);
  void NotePeak(Bytes load, Nanoseconds time_ns, int32_t events);
  Bytes Load() const { return timeline_.LoadBefore(events_done_) + swapped_; }
  void Stalled(int32_t op, StallCause cause, int32_t place, Nanoseconds since_ns);
  Queues& QueuesOf(const Move& move) { return queues_[move.swap.tier]; }
  bool WouldExceed(Bytes bytes) const { return budget_bytes_ && Load() + bytes > *budget_bytes_; }
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
  std::vector<Happening> happenings_;  // in the order of the replay

  std::vector<std::vector<int32_t>> ops_before_;  // by op; empty without order edges
  std::vector<Nanoseconds> really_ends_ns_;       // of ops that others are ordered after

  Nanoseconds now_ = 0;
  Nanoseconds shift_ = 0;
  int32_t events_done_ = 0;
  Bytes swapped_ = 0;  // what swaps have added to the load so far, and taken from it

  std::vector<Queues> queues_;
  std::vector<int32_t> out_rank_;  // by move: how many copies-out were asked for before it
  int32_t outs_asked_ = 0;
  std::priority_queue<Join, std::vector<Join>, std::greater<Join>> joins_;
  bool allocation_waits_ = false;

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
  ReadOrder(order);
  ListHappenings();
  result_.peak_bytes = data_.resident_bytes;
  result_.swap_changes.reserve(2 * moves_.size());
  TakeOver(leftovers);
}

void Replay::CheckSwaps(const std::vector<Swap>& swaps) const {
  const auto num_absences = static_cast<int32_t>(data_.absences.size());
  std::vector<bool> taken(data_.absences.size(), false);
  for (const Swap& swap : swaps) {
    if (swap.absence < 0 || swap.absence >= num_absences) {
      Refuse("a swap names absence " + Number(swap.absence) + " of " + Number(num_absences));
    }
    const auto refuse = [&](const std::string& what) {
      Refuse("the swap of absence " + Number(swap.absence) + what);
    };
    if (taken[swap.absence]) Refuse("absence " + Number(swap.absence) + " is swapped twice");
    taken[swap.absence] = true;
    for (int32_t op : {swap.gate_op, swap.trigger_op}) {
      if (op < -1 || op >= timeline_.num_ops()) {
        refuse(std::string(" names ") + (op == swap.gate_op ? "gate" : "trigger") + " op " +
               Number(op) + " of " + Number(timeline_.num_ops()));
      }
    }
    if (swap.tier < 0 || swap.tier >= static_cast<int32_t>(tiers_.size())) {
      refuse(" names tier " + Number(swap.tier) + " of " +
             Number(static_cast<int64_t>(tiers_.size())));
    }
    if (swap.sections < 0) refuse(" has " + Number(swap.sections) + " sections");
    if (swap.encode_ns < 0 || swap.decode_ns < 0) refuse(" has a codec of negative time");
    const int32_t producer = data_.absences[swap.absence].producer_op;
    if (swap.gate_op != kNone && producer != kNone &&
        timeline_.start_position(swap.gate_op) <= timeline_.end_position(producer)) {
      refuse(" is gated by op " + Number(swap.gate_op) + ", which starts before its producer " +
             Number(producer) + " has ended");
    }
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
  const int32_t sections = swap.sections > 0  ? swap.sections
                           : tier.in_sections ? Sections(bytes).count()
                                              : 1;
  for (int32_t section = 0; section < sections; ++section) {
    Move move;
    move.swap = swap;
    move.swap.sections = sections;
    move.absence = absence;
    move.role = role;
    move.place = place;
    move.section = section;
    move.bytes = Share(bytes, section, sections);
    move.far_bytes = Share(far_bytes, section, sections);
    move.out_ns = tier.OutDuration(move.far_bytes) + Share(swap.encode_ns, section, sections);
    move.in_ns = tier.InDuration(move.far_bytes) + Share(swap.decode_ns, section, sections);
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
    int32_t* next = &moves_[leader].follower;
    while (*next != kNone) next = &moves_[*next].next_follower;
    *next = number;
  }
}

void Replay::ListHappenings() {
  happenings_.reserve(5 * moves_.size());
  for (auto number = 0; number < static_cast<int32_t>(moves_.size()); ++number) {
    const Move& move = moves_[number];
    const auto at_start = [&](int32_t op, Relation relation) {
      if (op != kNone) happenings_.push_back({timeline_.start_position(op), relation, number});
    };
    const auto at_end = [&](int32_t op, Relation relation) {
      if (op != kNone) happenings_.push_back({timeline_.end_position(op), relation, number});
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
    if (ops_before_[op].empty() && really_ends_ns_[op] == kNever) continue;
    happenings_.push_back({timeline_.start_position(op), Relation::kOrdered, kNone});
  }
  std::sort(happenings_.begin(), happenings_.end());
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
      for (int32_t m = move.follower; m != kNone; m = moves_[m].next_follower) {
        if (moves_[m].fired) AskForCopyIn(m);
      }
    } else if (move.copies_out && move.absence.producer_op == kNone) {
      AskForCopyOut(number);
    }
  }
}

SimResult Replay::Run() {
  const auto num_events = static_cast<int32_t>(timeline_.events().size());
  Happenings begin = happenings_.begin();
  while (begin != happenings_.end()) {
    Happenings end = begin;
    while (end != happenings_.end() && end->position == begin->position) ++end;
    SkipTo(begin->position);
    Handle(begin, end);
    begin = end;
  }
  SkipTo(num_events);
  Advance(data_.step_ns + shift_);
  result_.step_ns = data_.step_ns + shift_;
  result_.stall_ns = shift_;
  FinishSwapTimes();
  FinishFarPeaks();
  result_.fits = !budget_bytes_ || result_.peak_bytes <= *budget_bytes_;
  for (size_t tier = 0; tier < tiers_.size(); ++tier) {
    if (result_.far_peak_bytes[tier] > tiers_[tier].capacity_bytes) result_.fits = false;
  }
  return std::move(result_);
}

void Replay::SkipTo(int32_t position) {
  const std::vector<Timeline::Event>& events = timeline_.events();
  if (budget_bytes_) {
    // Any allocation may have to wait.
    while (events_done_ < position) Handle(happenings_.end(), happenings_.end());
    return;
  }
  while (events_done_ < position) {
    const Nanoseconds copy = NextCopyEventAt();
    if (copy > events[position - 1].time_ns + shift_) {
      Pass(position);
      return;
    }
    // Events of the same time come after it.
    const auto next = std::partition_point(
        events.begin() + events_done_, events.begin() + position,
        [&](const Timeline::Event& event) { return event.time_ns + shift_ < copy; });
    Pass(static_cast<int32_t>(next - events.begin()));
    Advance(copy);
  }
}

void Replay::Pass(int32_t position) {
  if (position == events_done_) return;
  const int32_t fullest = timeline_.load().Place(events_done_, position);
  NotePeak(timeline_.load().values()[fullest] + swapped_,
           timeline_.events()[fullest].time_ns + shift_, fullest + 1);
  events_done_ = position;
}

void Replay::Handle(Happenings begin, Happenings end) {
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
  NotePeak(Load(), now_, events_done_);
  Advance(now_);
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

void Replay::OnAlloc(Bytes bytes) {
  if (!budget_bytes_) return;
  allocation_waits_ = true;
  for (int32_t out = NextOut(); WouldExceed(bytes) && out != kNone; out = NextOut()) {
    const Nanoseconds since = now_;
    Advance(moves_[out].times.out_end_ns);
    Stalled(timeline_.LastStarted(events_done_), StallCause::kBudget, moves_[out].place, since);
  }
  allocation_waits_ = false;
}

void Replay::OnOpStart(int32_t op, Happenings begin, Happenings end) {
  for (Happenings it = begin; it != end && it->relation == Relation::kNeeded; ++it) {
    if (!moves_[it->move].fired) {
      moves_[it->move].fired = true;
      AskForCopyIn(it->move);
    }
  }
  Advance(now_);
  for (Happenings it = begin; it != end; ++it) {
    if (it->relation != Relation::kGated) continue;
    const Nanoseconds since = now_;
    const Move& leader = moves_[moves_[it->move].leader];
    if (!leader.out_done) Advance(leader.times.out_end_ns);
    Stalled(op, StallCause::kGate, moves_[it->move].place, since);
  }
  for (Happenings it = begin; it != end && it->relation == Relation::kNeeded; ++it) {
    const Nanoseconds since = now_;
    while (!moves_[it->move].in_done) {
      StartCopiesIn();
      // With nothing left to happen, the budget alone holds the queue's head back.
      if (!NextCopyEvent(kNever)) StartCopyIn(&QueuesOf(moves_[it->move]));
    }
    Advance(now_);
    Stalled(op, StallCause::kSwapIn, moves_[it->move].place, since);
  }
  if (ops_before_.empty()) return;
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

void Replay::OnOpEnd(Happenings begin, Happenings end) {
  for (Happenings it = begin; it != end; ++it) {
    Move& move = moves_[it->move];
    if (it->relation == Relation::kProduced) {
      AskForCopyOut(it->move);
    } else if (it->relation == Relation::kAbsentAfter) {
      move.after_ended = true;
      ReleaseIfDone(&move);
    } else if (it->relation == Relation::kTriggered && !move.fired) {
      move.fired = true;
      AskForCopyIn(it->move);
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
  for (int32_t m = move.follower; m != kNone; m = moves_[m].next_follower) {
    if (moves_[m].fired) AskForCopyIn(m);
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
  NotePeak(Load(), now_, events_done_);
}

void Replay::NotePeak(Bytes load, Nanoseconds time_ns, int32_t events) {
  if (load <= result_.peak_bytes) return;
  result_.peak_bytes = load;
  result_.peak_ns = time_ns;
  result_.peak_events = events;
  result_.peak_changes = result_.swap_changes.size();
}

void Replay::Stalled(int32_t op, StallCause cause, int32_t place, Nanoseconds since_ns) {
  if (now_ == since_ns) return;
  shift_ += now_ - since_ns;
  result_.stalls.push_back({op, cause, place, now_ - since_ns});
  result_.shifts.push_back({events_done_, shift_});
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
