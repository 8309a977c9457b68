// What one training step would do under a plan: memory over time, copies, stalls.
//
//   bytes on the device
//     ^        absence of one swapped buffer
//     |  ####|- - -+                    +----|####
//     |  ####|copy |                    |copy|####
//     |  ####| out |                    | in |####
//     +--------------------------------------------------> time
//           ^      ^                    ^     ^
//     producer    released:            taken  before_op needs it
//     op ends     copied out and       when the copy-in starts
//                 after_op ended       (its trigger op has ended)
//
// The recorded step is replayed: op starts, op ends, allocations and frees happen in the recorded
// order, each at its recorded time plus one global shift. An op that has to wait (a stall) makes
// the shift larger, so everything after it moves, also ops that were running already: a step whose
// ops overlap may recover part of such a stall in reality; the simulator never says so.
//
// The step is one of many. A buffer that is absent across the step's end is far when the step
// begins; copies-out that the step before had not ended are still under way then.
//
// Only events that have to do with a swap, and copies, are gone through one by one; the largest
// load of the stretches between them is looked up.
//
// No TensorFlow here, and no clock: the same input always gives the same output.

#ifndef TFSWAP_CC_CORE_SIMULATE_SIMULATOR_H_
#define TFSWAP_CC_CORE_SIMULATE_SIMULATOR_H_

#include <cstdint>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "core/simulate/timeline.h"

namespace tfswap {

// A kind of far memory and the link to it. Each direction has one queue.
struct Tier {
  double out_bytes_per_s = 0;
  double in_bytes_per_s = 0;
  Nanoseconds out_latency_ns = 0;
  Nanoseconds in_latency_ns = 0;
  Bytes capacity_bytes = std::numeric_limits<int64_t>::max();
  bool in_sections = false;  // large buffers move piece by piece, see sections.h

  Nanoseconds OutDuration(Bytes bytes) const;
  Nanoseconds InDuration(Bytes bytes) const;
};

// One absence put to use.
struct Swap {
  int32_t absence = 0;
  int32_t gate_op = -1;     // does not start before the copy-out has ended; -1: nothing waits
  int32_t trigger_op = -1;  // its end starts the copy-in; -1: the copy-out's end does
  int32_t tier = 0;
  int32_t sections = 0;       // pieces in which it moves; 0: as many as its tier says
  Bytes far_bytes = -1;       // its size in far memory; -1: as on the device
  Nanoseconds encode_ns = 0;  // of a codec, for the whole buffer: on the copies' engine, before
  Nanoseconds decode_ns = 0;  // the bytes go out, after they came in
};

// `after` does not start before `before` has ended.
struct OrderEdge {
  int32_t before = 0;
  int32_t after = 0;
};

enum class StallCause : uint8_t { kGate, kSwapIn, kBudget, kOrder };

// An op that had to wait.
struct Stall {
  int32_t op;  // for kBudget: the op that started last before the allocation; -1: none had started
  StallCause cause;
  int32_t swap;  // the place in the given swaps of the copy that was waited for; -1: of none
  Nanoseconds ns;
};

// When the copies of one swap happened, in simulated time. A swap that uses an earlier swap's far
// copy has no copy-out: both times are -1.
struct SwapTimes {
  Nanoseconds out_start_ns = -1;
  Nanoseconds out_end_ns = -1;
  Nanoseconds released_ns = -1;
  Nanoseconds in_start_ns = -1;
  Nanoseconds in_end_ns = -1;
};

// One change of the device's load.
struct LoadChange {
  Nanoseconds time_ns;
  int32_t buffer;
  Bytes delta;
};

// One that a swap makes, after so many events of the timeline.
struct SwapLoadChange {
  int32_t events;
  LoadChange change;
};

// From the event at this position on, the step runs so much later than recorded.
struct Shift {
  int32_t position;
  Nanoseconds ns;
};

struct SimResult {
  Nanoseconds step_ns = 0;
  Nanoseconds stall_ns = 0;
  Bytes peak_bytes = 0;
  Nanoseconds peak_ns = 0;
  int32_t peak_events = 0;  // how many events of the timeline, and how many changes by swaps, led
  size_t peak_changes = 0;  // to the peak
  Bytes bytes_out = 0;      // over the links, of all tiers
  Bytes bytes_in = 0;
  std::vector<Bytes> far_peak_bytes;  // by tier
  bool fits = true;                   // the device's budget and each tier's capacity
  std::vector<Stall> stalls;
  std::vector<SwapTimes> swap_times;         // as the given swaps
  std::vector<SwapLoadChange> swap_changes;  // in order
  std::vector<Shift> shifts;                 // ascending
};

// Replays `timeline` under `swaps`.
//
// * Copies to (from) one tier run one at a time, first come first served.
// * A copy-out is asked for when its producer ends. A copy-in is asked for when its trigger ends,
//   or when before_op wants to start if the trigger has not ended by then, but never before its
//   copy-out has ended.
// * Device memory is released when the copy-out and after_op have both ended, and taken again when
//   the copy-in starts; in sections, piece by piece.
// * Swaps of absences with the same far_copy share the earliest one's copy-out; if one of them
//   crosses the step's end, that one's.
// * With a budget, an allocation beyond it waits for the copies-out that are asked for and not yet
//   ended; no copy-in starts meanwhile. If that does not help it goes through. A copy-in beyond
//   the budget waits at the head of its queue; it goes through if an op waits for it (or for one
//   behind it) and no copy-out is left to wait for.
//
// Throws std::invalid_argument if a swap names an absence twice or one that is not there, an op or
// a tier that is not there, or a gate that starts before the producer has ended; or if an order
// edge's `after` starts before `before` does.
SimResult Simulate(const Timeline& timeline, const std::vector<Swap>& swaps,
                   const std::vector<Tier>& tiers, std::optional<Bytes> budget_bytes,
                   const std::vector<OrderEdge>& order = {});

const char* StallCauseName(StallCause cause);

}  // namespace tfswap

#endif  // TFSWAP_CC_CORE_SIMULATE_SIMULATOR_H_
