// Swaps as the simulator moves them.
//
// A move is one section of one swap; a swap across the step's end makes two: what comes back in
// this step, and what leaves in it. Moves are numbered: those that come back from the step before,
// then all others by absence, so that the order in which swaps are given does not matter.

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

// Before the step begins. Throws as Simulate() does for swaps that cannot be.
std::vector<Move> MakeMoves(const Timeline& timeline, const std::vector<Swap>& swaps,
                            const std::vector<Tier>& tiers);

// What follows from them once the step has ended: the swaps' times, as they were given, and the
// most that is in far memory at once, by tier.
std::vector<SwapTimes> TimesOfSwaps(const std::vector<Move>& moves, size_t num_swaps);
std::vector<Bytes> FarPeaks(const std::vector<Move>& moves, size_t num_tiers, Nanoseconds step_ns);

}  // namespace tfswap

#endif  // TFSWAP_CC_CORE_SIMULATE_MOVES_H_
