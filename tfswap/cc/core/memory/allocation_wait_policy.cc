#include "core/memory/allocation_wait_policy.h"

#include <algorithm>
#include <ctime>

#include "core/util/now.h"

namespace tfswap {

namespace {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;
using std::chrono::seconds;

// How long nothing at all may happen: between two kernels an executor thread is busy without one,
// so "no kernel runs" alone is no proof.
constexpr auto kLifeless = milliseconds(200);
// The same while a thread would do something if it had a core, or is busy with other things; those
// it is if threads have worked for so long.
constexpr auto kLifelessOnCrowdedMachine = seconds(5);
constexpr auto kWorkedElsewhere = seconds(1);
constexpr auto kWithoutRelease = seconds(60);
// Of the time between two looks, what may have gone by without the process being stopped.
constexpr auto kLongestLook = seconds(1);

}  // namespace

AllocationWaitPolicy::Moment AllocationWaitPolicy::Now() {
  timespec worked{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &worked);
  return {NowNs(), worked.tv_sec * 1'000'000'000 + worked.tv_nsec};
}

bool AllocationWaitPolicy::EndsAt(Moment look, bool released, bool alive,
                                  const std::function<bool()>& others_are_runnable) {
  const nanoseconds since(look.now_ns - last_look_ns_);
  last_look_ns_ = look.now_ns;
  without_release_ += std::min<nanoseconds>(since, kLongestLook);
  without_life_ += std::min<nanoseconds>(since, kLongestLook);
  // On a crowded machine, a thread that could free some may not get a core for long, and neither
  // does this one: what a nap took longer than it should have does not count.
  lifeless_ += std::min<nanoseconds>(since, 2 * kNap);
  if (released) without_release_ = {};
  if (released || alive) {
    without_life_ = lifeless_ = {};
    worked_ns_ = look.worked_ns;
  }
  if (without_release_ > kWithoutRelease) return true;
  if (lifeless_ <= kLifeless) return false;
  const nanoseconds worked(look.worked_ns - worked_ns_);
  const bool elsewhere = without_life_ > kLifelessOnCrowdedMachine && worked > kWorkedElsewhere;
  if (elsewhere || !others_are_runnable()) return true;
  lifeless_ = kLifeless / 2;
  return false;
}

}  // namespace tfswap
