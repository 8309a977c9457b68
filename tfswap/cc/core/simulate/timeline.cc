#include "core/simulate/timeline.h"

#include <algorithm>
#include <stdexcept>
#include <tuple>
#include <utility>

namespace tfswap {
namespace {

constexpr int32_t kNone = -1;

void CheckData(const TimelineData& data) {
  const size_t num_ops = data.op_start_ns.size();
  const size_t num_buffers = data.buffer_bytes.size();
  Require(data.op_end_ns.size() == num_ops, "op_start_ns and op_end_ns differ in length");
  Require(data.buffer_alloc_ns.size() == num_buffers && data.buffer_free_ns.size() == num_buffers,
          "buffer_bytes, buffer_alloc_ns and buffer_free_ns differ in length");
  for (size_t i = 0; i < num_ops; ++i) {
    Require(data.op_end_ns[i] >= data.op_start_ns[i], "op " + Number(i) + " ends before it starts");
    Require(i == 0 || data.op_start_ns[i] >= data.op_start_ns[i - 1],
            "op " + Number(i) + " starts before the op that precedes it");
  }
  for (size_t i = 0; i < num_buffers; ++i) {
    Require(data.buffer_free_ns[i] >= data.buffer_alloc_ns[i],
            "buffer " + Number(i) + " is freed before it is allocated");
  }
}

}  // namespace

void Require(bool holds, const std::string& message) {
  if (!holds) throw std::invalid_argument(message);
}

std::string Number(int64_t value) { return std::to_string(value); }

Timeline::Timeline(TimelineData data) : data_(std::move(data)) {
  CheckData(data_);
  OrderEvents();
  AddUpLoad();
  CheckAbsences();
}

void Timeline::OrderEvents() {
  struct Entry {
    Nanoseconds time_ns;
    int8_t rank;  // at equal times
    int32_t index;
    int8_t part;  // an op's start, then its end
    EventKind kind;
  };
  std::vector<Entry> entries;
  const auto num_buffers = static_cast<int32_t>(data_.buffer_bytes.size());
  entries.reserve(2 * static_cast<size_t>(num_ops() + num_buffers));
  for (int32_t i = 0; i < num_ops(); ++i) {
    const bool takes_time = data_.op_end_ns[i] > data_.op_start_ns[i];
    entries.push_back({data_.op_start_ns[i], 2, i, 0, EventKind::kOpStart});
    entries.push_back(
        {data_.op_end_ns[i], static_cast<int8_t>(takes_time ? 1 : 2), i, 1, EventKind::kOpEnd});
  }
  for (int32_t i = 0; i < num_buffers; ++i) {
    const Nanoseconds alloc_ns = std::max<Nanoseconds>(data_.buffer_alloc_ns[i], 0);
    entries.push_back({alloc_ns, 3, i, 0, EventKind::kAlloc});
    if (data_.buffer_free_ns[i] == kOutlivesStep) continue;
    const Nanoseconds free_ns = std::max<Nanoseconds>(data_.buffer_free_ns[i], 0);
    entries.push_back(
        {free_ns, static_cast<int8_t>(free_ns > alloc_ns ? 0 : 4), i, 0, EventKind::kFree});
  }
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    return std::tie(a.time_ns, a.rank, a.index, a.part) <
           std::tie(b.time_ns, b.rank, b.index, b.part);
  });

  events_.reserve(entries.size());
  start_position_.resize(num_ops());
  end_position_.resize(num_ops());
  for (const Entry& entry : entries) {
    const auto position = static_cast<int32_t>(events_.size());
    if (entry.kind == EventKind::kOpStart) start_position_[entry.index] = position;
    if (entry.kind == EventKind::kOpEnd) end_position_[entry.index] = position;
    events_.push_back({entry.time_ns, entry.kind, entry.index});
  }
}

void Timeline::AddUpLoad() {
  std::vector<int64_t> load;
  load.reserve(events_.size());
  Bytes bytes = data_.resident_bytes;
  for (const Event& event : events_) {
    if (event.kind == EventKind::kAlloc) bytes += data_.buffer_bytes[event.index];
    if (event.kind == EventKind::kFree) bytes -= data_.buffer_bytes[event.index];
    load.push_back(bytes);
  }
  load_ = RangeMax(std::move(load));
}

int32_t Timeline::LastStarted(int32_t events) const {
  for (int32_t position = events - 1; position >= 0; --position) {
    if (events_[position].kind == EventKind::kOpStart) return events_[position].index;
  }
  return kNone;
}

void Timeline::CheckAbsences() const {
  const auto num_absences = static_cast<int32_t>(data_.absences.size());
  for (int32_t i = 0; i < num_absences; ++i) {
    const Absence& absence = data_.absences[i];
    const std::string name = "absence " + Number(i);
    Require(absence.buffer >= 0 && absence.buffer < static_cast<int32_t>(data_.buffer_bytes.size()),
            name + " names buffer " + Number(absence.buffer) + " of " +
                Number(data_.buffer_bytes.size()));
    for (int32_t op : {absence.after_op, absence.before_op}) {
      Require(op >= 0 && op < num_ops(),
              name + " names op " + Number(op) + " of " + Number(num_ops()));
    }
    Require(absence.producer_op >= -1 && absence.producer_op < num_ops(),
            name + " names op " + Number(absence.producer_op) + " of " + Number(num_ops()));
    Require(absence.far_copy >= 0 && absence.far_copy < num_absences,
            name + " names far copy " + Number(absence.far_copy) + " of " + Number(num_absences));
    Require(absence.producer_op == kNone ||
                end_position(absence.producer_op) <= end_position(absence.after_op),
            name + " begins before its buffer is produced");
    if (CrossesStepEnd(absence)) {
      Require(data_.buffer_free_ns[absence.buffer] == kOutlivesStep &&
                  data_.buffer_alloc_ns[absence.buffer] <= 0,
              name + " ends before it begins, and its buffer does not outlive the step");
    }
  }
}

}  // namespace tfswap
