#ifndef TFSWAP_CC_CORE_MEMORY_ALLOCATION_WAIT_POLICY_H_
#define TFSWAP_CC_CORE_MEMORY_ALLOCATION_WAIT_POLICY_H_

#include <chrono>
#include <cstdint>
#include <functional>

namespace tfswap {

// The interval at which a waiting allocation samples the process.
constexpr auto kPollInterval = std::chrono::milliseconds(2);

// Decides how long an allocation waits for memory to be released: until nothing that could release
// any has run for a while. Time during which the process is stopped (Ctrl-Z, a paused container)
// hardly counts. The wait is longer for a thread that could release memory but gets no core than
// for one that is busy with other work.
class AllocationWaitPolicy {
 public:
  struct Sample {
    int64_t now_ns;
    int64_t worked_ns;  // CPU time of all threads of this process
  };
  static Sample Now();

  explicit AllocationWaitPolicy(Sample begin)
      : last_sample_ns_(begin.now_ns), worked_ns_(begin.worked_ns) {}

  // Call this about every `kPollInterval`. `released`: memory was released since the last call;
  // `alive`: something runs or ran that may release memory. Return whether further waiting is
  // useless.
  bool ShouldStop(Sample sample, bool released, bool alive,
                  const std::function<bool()>& others_are_runnable);
  std::chrono::nanoseconds WithoutRelease() const { return without_release_; }

 private:
  int64_t last_sample_ns_;
  int64_t worked_ns_;  // at the last activity
  std::chrono::nanoseconds without_release_{0};
  std::chrono::nanoseconds without_activity_{0};
  std::chrono::nanoseconds idle_{0};  // the same, but long intervals count as short ones
};

}  // namespace tfswap

#endif  // TFSWAP_CC_CORE_MEMORY_ALLOCATION_WAIT_POLICY_H_
