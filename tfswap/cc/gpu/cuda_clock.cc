#include "gpu/cuda_clock.h"

#include <algorithm>
#include <cmath>

#include "core/util/now.h"

namespace tfswap {

namespace {

// Elapsed times are floats in ms: within intervals of this length they are accurate to some ns.
constexpr double kSectionMs = 50;

}  // namespace

void CudaClock::Start() {
  CudaContext current(driver_, context_);
  if (!Restart() || !check_("waiting for an event", driver_->EventSynchronize(events_[0]))) return;
  start_ns_ = NowNs();
  running_.store(true);
}

bool CudaClock::Restart() {
  std::lock_guard<std::mutex> lock(mu_);
  marks_ = 0;
  waits_.clear();
  return MarkLocked() == 0;
}

int32_t CudaClock::Mark() {
  if (!running_.load(std::memory_order_relaxed)) return -1;
  std::lock_guard<std::mutex> lock(mu_);
  if (!running_.load()) return -1;
  CudaContext current(driver_, context_);
  return MarkLocked();
}

int32_t CudaClock::MarkLocked() {
  if (static_cast<size_t>(marks_) == events_.size()) {
    CudaDriver::Event event = nullptr;
    if (!check_("making an event", driver_->EventCreate(&event, CudaDriver::kEventDefault))) {
      return -1;
    }
    events_.push_back(event);
  }
  if (!check_("recording an event", driver_->EventRecord(events_[marks_], compute_))) return -1;
  return marks_++;
}

void CudaClock::Wait(const std::function<void()>& wait) {
  if (!running_.load(std::memory_order_relaxed)) {
    wait();
    return;
  }
  // Commands that other threads enqueue meanwhile are counted as waiting; there are hardly any.
  std::lock_guard<std::mutex> lock(mu_);
  CudaContext current(driver_, context_);
  const int32_t begin = running_.load() ? MarkLocked() : -1;
  wait();
  if (begin < 0) return;
  const int32_t end = MarkLocked();
  if (end >= 0) waits_.emplace_back(begin, end);
}

GpuTimes CudaClock::Stop() {
  GpuTimes times;
  if (!running_.exchange(false)) return times;
  CudaContext current(driver_, context_);
  CudaDriver::Event last;
  {
    std::lock_guard<std::mutex> lock(mu_);
    last = events_[marks_ - 1];
  }
  if (!check_("waiting for an event", driver_->EventSynchronize(last))) return times;
  std::lock_guard<std::mutex> lock(mu_);
  times.marks_ns.reserve(marks_);
  times.marks_ns.push_back(start_ns_);
  int32_t section = 0;  // the mark at its start
  for (int32_t mark = 1; mark < marks_; ++mark) {
    float ms = 0;
    if (!check_("reading a time",
                driver_->EventElapsedTime(&ms, events_[section], events_[mark]))) {
      return GpuTimes();
    }
    const int64_t ns = times.marks_ns[section] + std::llround(static_cast<double>(ms) * 1e6);
    times.marks_ns.push_back(std::max(ns, times.marks_ns.back()));
    if (ms > kSectionMs) section = mark;
  }
  times.waits.reserve(waits_.size());
  for (const auto& [begin, end] : waits_) {
    times.waits.emplace_back(times.marks_ns[begin], times.marks_ns[end]);
  }
  return times;
}

}  // namespace tfswap
