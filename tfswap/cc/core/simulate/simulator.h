// Simulates one training step under a plan: memory over time, copies, stalls.
//
//  bytes on the device
//    ^        absence of one swapped buffer
//    |  ####|- - -+                    +----|####
//    |  ####|copy |                    |copy|####
//    |  ####| out |                    | in |####
//    +--------------------------------------------------> time
//          ^      ^                    ^     ^
//    producer    released:          allocated  before_op needs it
//    op ends     copied out and       when the copy-in starts
//                after_op ended       (its trigger op has ended)
//
// The recorded step is replayed: op starts, op ends, allocations and frees happen in the recorded
// order, each at its recorded time plus one global shift. An op that has to wait (a stall)
// increases the shift and so delays everything after it, including ops that were running already.
// If ops overlap, a real step may recover part of such a stall; the simulator does not model this.
//
// The step is one of many: a buffer that is absent across the step's end is in far memory when the
// step starts, and copies-out that the previous step has not finished are still running.
//
// Only copies and the events that affect a swap are processed one by one; the peak load between
// them is looked up.
//
// Deterministic, and independent of TensorFlow.

#ifndef TFSWAP_CC_CORE_SIMULATE_SIMULATOR_H_
#define TFSWAP_CC_CORE_SIMULATE_SIMULATOR_H_

#include <cstdint>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "core/simulate/timeline.h"

namespace tfswap {

// A tier of far memory and the link to it. Each direction has one queue.
struct Tier {
  double out_bytes_per_s = 0;
  double in_bytes_per_s = 0;
  Nanoseconds out_latency_ns = 0;
  Nanoseconds in_latency_ns = 0;
  Bytes capacity_bytes = std::numeric_limits<int64_t>::max();
  bool in_sections = false;  // large buffers move in chunks, see buffer_chunks.h

  Nanoseconds OutDuration(Bytes bytes) const;
  Nanoseconds InDuration(Bytes bytes) const;
};

// An absence that is used for a swap.
struct Swap {
  int32_t absence = 0;
  int32_t gate_op = -1;     // does not start before the copy-out has ended; -1: no op waits
  int32_t trigger_op = -1;  // its end starts the copy-in; -1: the end of the copy-out does
  int32_t tier = 0;
  int32_t sections = 0;       // chunks in which it moves; 0: determined by the tier
  Bytes far_bytes = -1;       // its size in far memory; -1: as on the device
  Nanoseconds encode_ns = 0;  // codec times for the whole buffer, spent on the copy engine before
  Nanoseconds decode_ns = 0;  // the copy-out and after the copy-in
};

// `after` does not start before `before` has ended.
struct OrderEdge {
  int32_t before = 0;
  int32_t after = 0;
};

enum class StallCause : uint8_t { kGate, kSwapIn, kBudget, kOrder };

// An op that had to wait.
struct Stall {
  int32_t op;  // for kBudget: the last op that started before the allocation; -1: none
  StallCause cause;
  int32_t swap;  // the index of the swap whose copy the op waited for; -1: none
  Nanoseconds ns;
};

// The simulated times of the copies of one swap. A swap that shares the far copy of an earlier swap
// has no copy-out: both times are -1.
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

// A change by a swap, after so many events of the timeline.
struct SwapLoadChange {
  int32_t events;
  LoadChange change;
};

// From the event at this position on, the step is so much later than recorded.
struct Shift {
  int32_t position;
  Nanoseconds ns;
};

struct SimResult {
  Nanoseconds step_ns = 0;
  Nanoseconds stall_ns = 0;
  Bytes peak_bytes = 0;
  Nanoseconds peak_ns = 0;
  int32_t peak_events = 0;  // number of timeline events and of changes by swaps
  size_t peak_changes = 0;  // before the peak
  Bytes bytes_out = 0;      // over the links, of all tiers
  Bytes bytes_in = 0;
  std::vector<Bytes> far_peak_bytes;  // by tier
  bool fits = true;                   // the device's budget and each tier's capacity
  std::vector<Stall> stalls;
  std::vector<SwapTimes> swap_times;         // in the order of the given swaps
  std::vector<SwapLoadChange> swap_changes;  // in order
  std::vector<Shift> shifts;                 // ascending
};

// Replay `timeline` under `swaps`.
//
// * Copies to (from) one tier run one at a time, in FIFO order.
// * A copy-out is requested when its producer ends. A copy-in is requested when its trigger ends,
//   or when before_op wants to start if the trigger has not ended by then, but never before its
//   copy-out has ended.
// * Device memory is released when the copy-out and after_op have both ended, and allocated again
//   when the copy-in starts; in chunks if the buffer moves in chunks.
// * Swaps of absences with the same far_copy share the earliest copy-out among them; if one of them
//   crosses the step's end, that one's.
// * With a budget, an allocation beyond it waits for the copies-out that are requested and not yet
//   ended; no copy-in starts meanwhile. If that does not help, the allocation succeeds anyway. A
//   copy-in beyond the budget waits at the head of its queue; it starts if an op waits for it (or
//   for one after it) and no copy-out is left to wait for.
//
// Throws std::invalid_argument if a swap names an absence twice or one that does not exist, an op
// or a tier that does not exist, or a gate that starts before the producer has ended; or if the
// `after` of an order edge starts before its `before`.
SimResult Simulate(const Timeline& timeline, const std::vector<Swap>& swaps,
                   const std::vector<Tier>& tiers, std::optional<Bytes> budget_bytes,
                   const std::vector<OrderEdge>& order = {});

const char* StallCauseName(StallCause cause);

}  // namespace tfswap

#endif  // TFSWAP_CC_CORE_SIMULATE_SIMULATOR_H_
