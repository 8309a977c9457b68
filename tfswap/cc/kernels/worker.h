#ifndef TFSWAP_CC_KERNELS_WORKER_H_
#define TFSWAP_CC_KERNELS_WORKER_H_

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>

namespace tfswap {

// A thread and its queue: smaller places first, equal ones in the order of their coming. It lives
// as long as the process; should its thread end, another one goes on with what is left.
class Worker {
 public:
  // `name` outlives it.
  explicit Worker(const char* name);
  void Schedule(int64_t place, std::function<void()> job);
  // Is there a job that goes before `place`?
  bool HasBefore(int64_t place);

 private:
  void StartLocked();
  void Serve();
  void ThreadEnds();

  const char* const name_;
  std::mutex mu_;
  std::condition_variable wake_;
  std::multimap<int64_t, std::function<void()>> jobs_;
  bool has_thread_ = false;
};

}  // namespace tfswap

#endif  // TFSWAP_CC_KERNELS_WORKER_H_
