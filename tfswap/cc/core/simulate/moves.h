// Swaps as the simulator executes them.
//
// A move is one chunk of one swap. A swap across the end of the step makes two moves: one that
// comes back in this step, and one that leaves in it. Moves are numbered: first those that come
// back from the previous step, then all others by absence, so the order of the given swaps does not
// matter.

#ifndef TFSWAP_CC_CORE_SIMULATE_MOVES_H_
#define TFSWAP_CC_CORE_SIMULATE_MOVES_H_

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "core/simulate/simulator.h"
#include "core/simulate/timeline.h"

namespace tfswap {

constexpr int32_t kNone = -1;
constexpr Nanoseconds kNever = std::numeric_limits<int64_t>::max();

enum class Role : uint8_t { kWithinStep, kArrives, kDeparts };

struct Move {
  Swap swap;
  Absence absence;
  Role role;
  int32_t place;    // index of its swap in the caller's list
  int32_t section;  // number of the chunk
  Bytes bytes;
  Bytes far_bytes;
  Nanoseconds out_ns;
  Nanoseconds in_ns;
  int32_t leader;  // the move whose copy-out this one waits for; itself in the common case
  bool copies_out = false;
  bool out_requested = false;
  bool out_done = false;
  bool after_ended = false;
  bool fired = false;         // its trigger has ended
  bool in_requested = false;  // the time of joining the queue is known
  bool in_done = false;
  SwapTimes times;
  int32_t follower = kNone;       // of a leader: the first move that shares its copy-out
  int32_t next_follower = kNone;  // of a follower: the next one
};

// Return the moves before the step starts. Throws like Simulate() for invalid swaps.
std::vector<Move> MakeMoves(const Timeline& timeline, const std::vector<Swap>& swaps,
                            const std::vector<Tier>& tiers);

// Return the results of a simulated step: the times of the swaps in the given order, and the peak
// of far memory by tier.
std::vector<SwapTimes> TimesOfSwaps(const std::vector<Move>& moves, size_t num_swaps);
std::vector<Bytes> FarPeaks(const std::vector<Move>& moves, size_t num_tiers, Nanoseconds step_ns);

}  // namespace tfswap

#endif  // TFSWAP_CC_CORE_SIMULATE_MOVES_H_
