#include "allocator/patience.h"

#include <algorithm>

#include "core/runnable_threads.h"

namespace tfswap {

namespace {

// How long nothing at all may happen: between two kernels an executor thread is busy without one,
// so "no kernel runs" alone is no proof.
constexpr auto kLifeless = std::chrono::milliseconds(200);
// The same while a thread would do something if it had a core, or is busy with other things.
constexpr auto kLifelessOnCrowdedMachine = std::chrono::seconds(5);
constexpr auto kWithoutRelease = std::chrono::seconds(60);

}  // namespace

bool Patience::EndsAt(bool released, bool alive) {
  const Clock::time_point now = Clock::now();
  // On a crowded machine, a thread that could free some may not get a core for long, and neither
  // does this one: what a nap took longer than it should have does not count.
  lifeless_ += std::min<Clock::duration>(now - last_look_, 2 * kNap);
  last_look_ = now;
  if (released) last_release_ = now;
  if (released || alive) {
    lifeless_ = {};
    last_life_ = now;
  }
  if (now - last_release_ > kWithoutRelease) return true;
  if (lifeless_ <= kLifeless) return false;
  if (now - last_life_ > kLifelessOnCrowdedMachine || !OthersAreRunnable()) return true;
  lifeless_ = kLifeless / 2;
  return false;
}

}  // namespace tfswap
