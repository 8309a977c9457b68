#ifndef TFSWAP_CC_CORE_UTIL_THREAD_TEAM_H_
#define TFSWAP_CC_CORE_UTIL_THREAD_TEAM_H_

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>

namespace tfswap {

// Threads that stay, for work that comes in many small parts which whoever is free takes. Nobody
// waits for a thread that is busy elsewhere: who asks works too, and all of it if need be.
class ThreadTeam {
 public:
  // The process's; its threads are started when they are first asked for, and end with it.
  static ThreadTeam& Shared();

  // Calls `work` on this thread and on up to `threads` - 1 others at once; returns when all calls
  // have. A call takes parts until none is left, so one alone does everything. Thread-safe.
  void Together(int threads, const std::function<void()>& work);

 private:
  struct Job {
    const std::function<void()>* work;
    int wanted;       // threads that may still join
    int working = 0;  // threads that have joined and not finished
  };

  void StartUpTo(int threads);
  void Serve();

  std::mutex mu_;
  std::condition_variable wanted_;
  std::condition_variable finished_;
  std::deque<Job*> jobs_;  // with threads wanted
  int threads_ = 0;
};

}  // namespace tfswap

#endif  // TFSWAP_CC_CORE_UTIL_THREAD_TEAM_H_
