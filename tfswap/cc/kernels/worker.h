#ifndef TFSWAP_CC_KERNELS_WORKER_H_
#define TFSWAP_CC_KERNELS_WORKER_H_

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>

namespace tfswap {

// A thread with a priority queue: smaller places first, FIFO among equal ones. Never destroyed; a
// thread that ends is replaced by a new one, which continues with the queue.
class Worker {
 public:
  // `name` must outlive the worker.
  explicit Worker(const char* name);
  void Schedule(int64_t place, std::function<void()> job);
  // Return whether a job before `place` is queued.
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
