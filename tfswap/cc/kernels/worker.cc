#include "kernels/worker.h"

#include <pthread.h>

#include <thread>
#include <utility>

namespace tfswap {

Worker::Worker(const char* name) {
  std::thread thread([this] {
    for (;;) {
      std::function<void()> job;
      {
        std::unique_lock<std::mutex> lock(mu_);
        wake_.wait(lock, [this] { return !jobs_.empty(); });
        job = std::move(jobs_.extract(jobs_.begin()).mapped());
      }
      job();
    }
  });
  pthread_setname_np(thread.native_handle(), name);
  thread.detach();
}

void Worker::Schedule(int64_t place, std::function<void()> job) {
  {
    std::lock_guard<std::mutex> lock(mu_);
    jobs_.emplace(place, std::move(job));
  }
  wake_.notify_one();
}

bool Worker::HasBefore(int64_t place) {
  std::lock_guard<std::mutex> lock(mu_);
  return !jobs_.empty() && jobs_.begin()->first < place;
}

}  // namespace tfswap
