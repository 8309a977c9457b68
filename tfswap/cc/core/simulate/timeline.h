// One training step without swaps: ops, buffers, and the gaps in which a buffer is not used.
//
// Independent of TensorFlow.

#ifndef TFSWAP_CC_CORE_SIMULATE_TIMELINE_H_
#define TFSWAP_CC_CORE_SIMULATE_TIMELINE_H_

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "core/simulate/range_max.h"

namespace tfswap {

using Nanoseconds = int64_t;
using Bytes = int64_t;

// The free time of a buffer that is still alive when the step ends.
inline constexpr Nanoseconds kOutlivesStep = std::numeric_limits<int64_t>::max();

// A gap in the use of one buffer. Ops are indices into the timeline.
//
// If after_op does not end before before_op starts, the gap crosses the end of the step: it lasts
// from after_op to before_op of the next step. The buffer then outlives the step.
struct Absence {
  int32_t buffer = 0;
  int32_t producer_op = -1;  // the copy-out may start when it ends; -1: at the start of the step
  int32_t after_op = 0;      // the last op that touches the buffer before the gap
  int32_t before_op = 0;     // the first op that needs it again
  // Absences with the same value read the same tensor and share one far copy. If one of them
  // crosses the step's end, those without a producer read the value from the previous step.
  int32_t far_copy = 0;
};

// Times are in nanoseconds from the start of the step.
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

// A step with its events in replay order.
//
// At equal times: frees, ends of ops, starts of ops by index (an op of zero duration ends right
// after its own start), allocations, frees of buffers of zero lifetime.
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
  int32_t num_ops() const { return static_cast<int32_t>(data_.op_start_ns.size()); }
  // Positions in events().
  int32_t start_position(int32_t op) const { return start_position_[op]; }
  int32_t end_position(int32_t op) const { return end_position_[op]; }
  // The load without swaps after each event; before the first one it is resident_bytes.
  const RangeMax& load() const { return load_; }
  Bytes LoadBefore(int32_t position) const {
    return position == 0 ? data_.resident_bytes : load_.values()[position - 1];
  }
  // The op that started last among the first `events` events; -1 if there is none.
  int32_t LastStarted(int32_t events) const;
  bool CrossesStepEnd(const Absence& absence) const {
    return end_position(absence.after_op) >= start_position(absence.before_op);
  }

 private:
  void OrderEvents();
  void AddUpLoad();
  void CheckAbsences() const;

  TimelineData data_;
  std::vector<Event> events_;
  RangeMax load_;
  std::vector<int32_t> start_position_;
  std::vector<int32_t> end_position_;
};

// Throws std::invalid_argument with `message` unless `holds`.
void Require(bool holds, const std::string& message);
std::string Number(int64_t value);

}  // namespace tfswap

#endif  // TFSWAP_CC_CORE_SIMULATE_TIMELINE_H_
