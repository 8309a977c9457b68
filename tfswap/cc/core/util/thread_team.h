#ifndef TFSWAP_CC_CORE_UTIL_THREAD_TEAM_H_
#define TFSWAP_CC_CORE_UTIL_THREAD_TEAM_H_

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>

namespace tfswap {

// A thread pool for work that consists of many small parts which idle threads pick up. The caller
// works as well, so it never waits for a thread that is busy with another job.
class ThreadTeam {
 public:
  // The pool of the process. Its threads are started on first use and run until the process ends.
  static ThreadTeam& Shared();

  // Call `work` on this thread and on up to `threads` - 1 others in parallel; return when all calls
  // have. Each call must process parts until none is left, so that one call alone does everything.
  // Thread-safe.
  void RunParallel(int threads, const std::function<void()>& work);

 private:
  struct Job {
    const std::function<void()>* work;
    int open_slots;   // threads that may still join
    int working = 0;  // threads that have joined and not finished
  };

  void StartUpTo(int threads);
  void Serve();

  std::mutex mu_;
  std::condition_variable work_available_;
  std::condition_variable finished_;
  std::deque<Job*> jobs_;  // with open slots
  int threads_ = 0;
};

}  // namespace tfswap

#endif  // TFSWAP_CC_CORE_UTIL_THREAD_TEAM_H_
