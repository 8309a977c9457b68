#ifndef TFSWAP_CC_CORE_MEMORY_ALLOCATION_WAIT_POLICY_H_
#define TFSWAP_CC_CORE_MEMORY_ALLOCATION_WAIT_POLICY_H_

#include <chrono>
#include <cstdint>
#include <functional>

namespace tfswap {

// How often a waiting allocation looks.
constexpr auto kNap = std::chrono::milliseconds(2);

// How long an allocation that finds no room waits for others to free some: until nothing that could
// has happened for a while. However long the process is stopped (Ctrl-Z, a container that is
// paused), little of that counts; a thread that could free some and gets no core is waited for
// longer than one that is busy with other things.
class AllocationWaitPolicy {
 public:
  struct Moment {
    int64_t now_ns;
    int64_t worked_ns;  // by all threads of this process so far, on cores
  };
  static Moment Now();

  explicit AllocationWaitPolicy(Moment begin)
      : last_look_ns_(begin.now_ns), worked_ns_(begin.worked_ns) {}

  // At each look, some `kNap` after the one before: whether memory was freed since, and whether
  // something runs, or ran, that may free some. Answers whether waiting is no use any more.
  bool EndsAt(Moment look, bool released, bool alive,
              const std::function<bool()>& others_are_runnable);
  std::chrono::nanoseconds WithoutRelease() const { return without_release_; }

 private:
  int64_t last_look_ns_;
  int64_t worked_ns_;  // when there last was life
  std::chrono::nanoseconds without_release_{0};
  std::chrono::nanoseconds without_life_{0};
  std::chrono::nanoseconds lifeless_{0};  // likewise, but that naps do not last
};

}  // namespace tfswap

#endif  // TFSWAP_CC_CORE_MEMORY_ALLOCATION_WAIT_POLICY_H_
