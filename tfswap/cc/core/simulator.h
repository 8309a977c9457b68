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
// No TensorFlow here, and no clock: the same input always gives the same output.

#ifndef TFSWAP_CC_CORE_SIMULATOR_H_
#define TFSWAP_CC_CORE_SIMULATOR_H_

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace tfswap {

using Nanoseconds = int64_t;
using Bytes = int64_t;

// A buffer that is still alive when the step ends.
inline constexpr Nanoseconds kOutlivesStep = std::numeric_limits<int64_t>::max();

// How fast the two directions of the link are.
struct LinkSpeeds {
  double out_bytes_per_s = 0;
  double in_bytes_per_s = 0;
  Nanoseconds out_latency_ns = 0;
  Nanoseconds in_latency_ns = 0;

  Nanoseconds OutDuration(Bytes bytes) const;
  Nanoseconds InDuration(Bytes bytes) const;
};

// A gap in the use of one buffer. All ops are indices into the timeline.
struct Absence {
  int32_t buffer = 0;
  int32_t producer_op = -1;  // the copy-out may start when it ends; -1: from the step's start
  int32_t after_op = 0;      // the last op that touches the buffer before the gap
  int32_t before_op = 0;     // the first op that needs it again
  // Absences with the same value read the same tensor: one far copy serves them all.
  int32_t far_copy = 0;
};

// One absence put to use.
struct Swap {
  int32_t absence = 0;
  int32_t gate_op = -1;     // does not start before the copy-out has ended; -1: nothing waits
  int32_t trigger_op = -1;  // its end starts the copy-in; -1: the copy-out's end does
};

// One unswapped step. Times are nanoseconds from its start.
struct TimelineData {
  std::vector<Nanoseconds> op_start_ns;  // ascending
  std::vector<Nanoseconds> op_end_ns;
  Bytes resident_bytes = 0;
  std::vector<Bytes> buffer_bytes;
  std::vector<Nanoseconds> buffer_alloc_ns;
  std::vector<Nanoseconds> buffer_free_ns;
  std::vector<Absence> absences;
  Nanoseconds step_ns = 0;
};

// A step with its events in the order of the replay.
//
// At equal times: frees, then ends of ops, then starts of ops by index (an op that takes no time
// ends right after its own start), then allocations, then frees of buffers that lived for no time.
class Timeline {
 public:
  enum class EventKind : uint8_t { kFree, kOpEnd, kOpStart, kAlloc };
  struct Event {
    Nanoseconds time_ns;
    EventKind kind;
    int32_t index;  // of the op or of the buffer
  };

  // Throws std::invalid_argument if an index or a length is wrong.
  explicit Timeline(TimelineData data);

  const TimelineData& data() const { return data_; }
  const std::vector<Event>& events() const { return events_; }
  // Places in events().
  int32_t start_position(int32_t op) const { return start_position_[op]; }
  int32_t end_position(int32_t op) const { return end_position_[op]; }

 private:
  TimelineData data_;
  std::vector<Event> events_;
  std::vector<int32_t> start_position_;
  std::vector<int32_t> end_position_;
};

enum class StallCause : uint8_t { kGate, kSwapIn, kBudget };

// An op that had to wait.
struct Stall {
  int32_t op;  // for kBudget: the op that started last before the allocation; -1: none had started
  StallCause cause;
  int32_t swap;  // the place in the given swaps of the copy that was waited for
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

struct SimResult {
  Nanoseconds step_ns = 0;
  Nanoseconds stall_ns = 0;
  Bytes peak_bytes = 0;
  Nanoseconds peak_ns = 0;
  int32_t peak_op = -1;  // the op that started last before the peak; -1: none had started
  Bytes bytes_out = 0;
  Bytes bytes_in = 0;
  Bytes host_peak_bytes = 0;
  bool fits = true;
  std::vector<std::pair<int32_t, Bytes>> peak_holders;  // five largest, resident bytes left out
  std::vector<Stall> stalls;
  std::vector<SwapTimes> swap_times;  // as the given swaps
  Bytes resident_bytes = 0;
  std::vector<LoadChange> load_changes;  // in order, from resident_bytes on
};

// Replays `timeline` under `swaps`.
//
// * Copies of one direction run one at a time, first come first served.
// * A copy-out is asked for when its producer ends. A copy-in is asked for when its trigger ends,
//   or when before_op wants to start if the trigger has not ended by then, but never before its
//   copy-out has ended.
// * Device memory is released when the copy-out and after_op have both ended, and taken again when
//   the copy-in starts.
// * Swaps of absences with the same far_copy share the earliest one's copy-out.
// * With a budget, an allocation beyond it waits for the copies-out that are asked for and not yet
//   ended; no copy-in starts meanwhile. If that does not help it goes through. A copy-in beyond
//   the budget waits at the head of its queue; it goes through if an op waits for it (or for one
//   behind it) and no copy-out is left to wait for.
//
// Throws std::invalid_argument if a swap names an absence twice or one that is not there, an op
// that is not there, or a gate that starts before the producer has ended.
SimResult Simulate(const Timeline& timeline, const std::vector<Swap>& swaps, const LinkSpeeds& link,
                   std::optional<Bytes> budget_bytes);

const char* StallCauseName(StallCause cause);

}  // namespace tfswap

#endif  // TFSWAP_CC_CORE_SIMULATOR_H_
