#ifndef TFSWAP_ALLOCATOR_PATIENCE_H_
#define TFSWAP_ALLOCATOR_PATIENCE_H_

#include <chrono>

namespace tfswap {

// How often a waiting allocation looks.
constexpr auto kNap = std::chrono::milliseconds(2);

// How long an allocation that finds no room waits for others to free some: until nothing that could
// has happened for a while.
class Patience {
 public:
  using Clock = std::chrono::steady_clock;

  // At each look, some `kNap` after the one before: whether memory was freed since, and whether
  // something runs, or ran, that may free some. Answers whether waiting is no use any more.
  bool EndsAt(bool released, bool alive);
  Clock::duration SinceRelease() const { return Clock::now() - last_release_; }

 private:
  Clock::time_point last_release_ = Clock::now();
  Clock::time_point last_life_ = last_release_;
  Clock::time_point last_look_ = last_release_;
  Clock::duration lifeless_{0};
};

}  // namespace tfswap

#endif  // TFSWAP_ALLOCATOR_PATIENCE_H_
