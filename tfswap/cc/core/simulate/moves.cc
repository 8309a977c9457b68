#include "core/simulate/moves.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>

#include "core/memory/buffer_chunks.h"

namespace tfswap {

namespace {

Nanoseconds CopyDuration(Bytes bytes, double bytes_per_s, Nanoseconds latency_ns) {
  return latency_ns +
         static_cast<Nanoseconds>(std::ceil(static_cast<double>(bytes) * 1e9 / bytes_per_s));
}

// Return the part of `total` that belongs to piece `piece` of `pieces`.
int64_t Share(int64_t total, int32_t piece, int32_t pieces) {
  return total * (piece + 1) / pieces - total * piece / pieces;
}

[[noreturn]] void Refuse(const std::string& why) { throw std::invalid_argument(why); }

void CheckSwaps(const Timeline& timeline, const std::vector<Swap>& swaps,
                const std::vector<Tier>& tiers) {
  const auto num_absences = static_cast<int32_t>(timeline.data().absences.size());
  std::vector<bool> taken(timeline.data().absences.size(), false);
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
      if (op < -1 || op >= timeline.num_ops()) {
        refuse(std::string(" names ") + (op == swap.gate_op ? "gate" : "trigger") + " op " +
               Number(op) + " of " + Number(timeline.num_ops()));
      }
    }
    if (swap.tier < 0 || swap.tier >= static_cast<int32_t>(tiers.size())) {
      refuse(" names tier " + Number(swap.tier) + " of " +
             Number(static_cast<int64_t>(tiers.size())));
    }
    if (swap.sections < 0) refuse(" has " + Number(swap.sections) + " sections");
    if (swap.encode_ns < 0 || swap.decode_ns < 0) refuse(" has a codec of negative time");
    const int32_t producer = timeline.data().absences[swap.absence].producer_op;
    if (swap.gate_op != kNone && producer != kNone &&
        timeline.start_position(swap.gate_op) <= timeline.end_position(producer)) {
      refuse(" is gated by op " + Number(swap.gate_op) + ", which starts before its producer " +
             Number(producer) + " has ended");
    }
  }
}

void AddMoves(const Timeline& timeline, const std::vector<Tier>& tiers, const Swap& swap,
              int32_t place, Role role, std::vector<Move>* moves) {
  const Tier& tier = tiers[swap.tier];
  const Absence& absence = timeline.data().absences[swap.absence];
  const Bytes bytes = timeline.data().buffer_bytes[absence.buffer];
  const Bytes far_bytes = swap.far_bytes < 0 ? bytes : swap.far_bytes;
  const int32_t sections = swap.sections > 0  ? swap.sections
                           : tier.in_sections ? BufferChunks(bytes).count()
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
    move.leader = static_cast<int32_t>(moves->size());
    move.fired = swap.trigger_op == kNone;
    if (role == Role::kArrives) {
      move.after_ended = true;
      move.out_requested = move.out_done = true;
    } else if (role == Role::kDeparts) {
      // A buffer that no op of the step writes is in far memory already.
      move.copies_out = absence.producer_op != kNone;
      move.out_requested = move.out_done = !move.copies_out;
      move.in_done = true;
    } else {
      move.copies_out = true;
    }
    moves->push_back(std::move(move));
  }
}

void FindLeaders(const Timeline& timeline, std::vector<Move>* all) {
  std::vector<Move>& moves = *all;
  // A tensor can have two far copies: of its value from the previous step, and of that from this
  // step.
  std::vector<int32_t> leaders(2 * timeline.data().absences.size(), kNone);
  for (int32_t number = 0; number < static_cast<int32_t>(moves.size()); ++number) {
    Move& move = moves[number];
    if (move.role == Role::kDeparts && !move.copies_out) continue;
    const bool made_before = move.role == Role::kArrives || move.absence.producer_op == kNone;
    int32_t& leader = leaders[2 * move.absence.far_copy + (made_before ? 0 : 1)];
    if (leader == kNone || moves[leader].place == move.place) {
      leader = number;  // the last chunk ends last
      continue;
    }
    move.leader = leader;
    move.copies_out = false;
    int32_t* next = &moves[leader].follower;
    while (*next != kNone) next = &moves[*next].next_follower;
    *next = number;
  }
}

int32_t LastSection(const std::vector<Move>& moves, int32_t number) {
  return number + moves[number].swap.sections - 1 - moves[number].section;
}

}  // namespace

Nanoseconds Tier::OutDuration(Bytes bytes) const {
  return CopyDuration(bytes, out_bytes_per_s, out_latency_ns);
}

Nanoseconds Tier::InDuration(Bytes bytes) const {
  return CopyDuration(bytes, in_bytes_per_s, in_latency_ns);
}

std::vector<Move> MakeMoves(const Timeline& timeline, const std::vector<Swap>& swaps,
                            const std::vector<Tier>& tiers) {
  CheckSwaps(timeline, swaps, tiers);
  std::vector<Move> moves;
  std::vector<int32_t> places(swaps.size());
  for (size_t i = 0; i < swaps.size(); ++i) places[i] = static_cast<int32_t>(i);
  std::sort(places.begin(), places.end(),
            [&](int32_t a, int32_t b) { return swaps[a].absence < swaps[b].absence; });
  moves.reserve(swaps.size());
  auto crosses = [&](int32_t place) {
    return timeline.CrossesStepEnd(timeline.data().absences[swaps[place].absence]);
  };
  for (int32_t place : places) {
    if (crosses(place)) AddMoves(timeline, tiers, swaps[place], place, Role::kArrives, &moves);
  }
  for (int32_t place : places) {
    AddMoves(timeline, tiers, swaps[place], place,
             crosses(place) ? Role::kDeparts : Role::kWithinStep, &moves);
  }
  FindLeaders(timeline, &moves);
  return moves;
}

std::vector<SwapTimes> TimesOfSwaps(const std::vector<Move>& moves, size_t num_swaps) {
  // From the start of the first chunk to the end of the last one.
  std::vector<SwapTimes> swap_times(num_swaps);
  for (const Move& move : moves) {
    SwapTimes& times = swap_times[move.place];
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
  return swap_times;
}

std::vector<Bytes> FarPeaks(const std::vector<Move>& moves, size_t num_tiers, Nanoseconds step_ns) {
  // A far copy lives from the start of its copy-out to the end of its last copy-in. One from the
  // previous step exists at the start, one for the next step at the end.
  std::vector<Nanoseconds> back_ns(moves.size(), 0);  // by the leader's last chunk
  for (const Move& move : moves) {
    Nanoseconds& back = back_ns[LastSection(moves, move.leader)];
    back = std::max(back, move.role == Role::kDeparts ? kNever : move.times.in_end_ns);
  }
  struct Change {
    int32_t tier;
    Nanoseconds time_ns;
    Bytes delta;
  };
  std::vector<Change> changes;
  for (size_t number = 0; number < moves.size(); ++number) {
    const Move& move = moves[number];
    if (move.leader != static_cast<int32_t>(number)) continue;
    const bool unchanged = move.absence.producer_op == kNone;
    Nanoseconds from = move.times.out_start_ns;
    Nanoseconds to = back_ns[LastSection(moves, static_cast<int32_t>(number))];
    if (move.role == Role::kArrives) {
      from = 0;
      if (unchanged) to = step_ns;
    } else if (move.role == Role::kDeparts && unchanged) {
      continue;  // counted when it arrives
    }
    changes.push_back({move.swap.tier, from, move.far_bytes});
    changes.push_back({move.swap.tier, to, -move.far_bytes});
  }
  // At equal times frees come first.
  std::sort(changes.begin(), changes.end(), [](const Change& a, const Change& b) {
    return std::tie(a.tier, a.time_ns, a.delta) < std::tie(b.tier, b.time_ns, b.delta);
  });
  std::vector<Bytes> far_peak_bytes(num_tiers, 0);
  Bytes far_bytes = 0;
  for (size_t i = 0; i < changes.size(); ++i) {
    if (i > 0 && changes[i].tier != changes[i - 1].tier) far_bytes = 0;
    far_bytes += changes[i].delta;
    Bytes& peak = far_peak_bytes[changes[i].tier];
    peak = std::max(peak, far_bytes);
  }
  return far_peak_bytes;
}

}  // namespace tfswap
