#include "core/memory/allocation_wait_policy.h"

#include <algorithm>
#include <ctime>

#include "core/util/now.h"

namespace tfswap {

namespace {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;
using std::chrono::seconds;

// Limit of the time without any activity. An executor thread is briefly busy between two kernels,
// so "no kernel runs" alone is no proof.
constexpr auto kIdleLimit = milliseconds(200);
// The same limit while a thread is runnable without a core, or is busy with other work; the latter
// is assumed if threads used this much CPU time.
constexpr auto kIdleLimitWhileRunnable = seconds(5);
constexpr auto kMinCpuTimeElsewhere = seconds(1);
constexpr auto kReleaseLimit = seconds(60);
// The most of an interval that counts; the rest is time during which the process was stopped.
constexpr auto kMaxCountedInterval = seconds(1);

}  // namespace

AllocationWaitPolicy::Sample AllocationWaitPolicy::Now() {
  timespec worked{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &worked);
  return {NowNs(), worked.tv_sec * 1'000'000'000 + worked.tv_nsec};
}

bool AllocationWaitPolicy::ShouldStop(Sample sample, bool released, bool alive,
                                      const std::function<bool()>& others_are_runnable) {
  const nanoseconds since(sample.now_ns - last_sample_ns_);
  last_sample_ns_ = sample.now_ns;
  without_release_ += std::min<nanoseconds>(since, kMaxCountedInterval);
  without_activity_ += std::min<nanoseconds>(since, kMaxCountedInterval);
  // On a loaded machine, neither a thread that could release memory nor this one may get a core for
  // long: an interval beyond the poll interval does not count.
  idle_ += std::min<nanoseconds>(since, 2 * kPollInterval);
  if (released) without_release_ = {};
  if (released || alive) {
    without_activity_ = idle_ = {};
    worked_ns_ = sample.worked_ns;
  }
  if (without_release_ > kReleaseLimit) return true;
  if (idle_ <= kIdleLimit) return false;
  const nanoseconds worked(sample.worked_ns - worked_ns_);
  const bool elsewhere =
      without_activity_ > kIdleLimitWhileRunnable && worked > kMinCpuTimeElsewhere;
  if (elsewhere || !others_are_runnable()) return true;
  idle_ = kIdleLimit / 2;
  return false;
}

}  // namespace tfswap
