#include "kernels/worker.h"

#include <pthread.h>

#include <system_error>
#include <thread>
#include <utility>

#include "core/util/faults.h"

namespace tfswap {

Worker::Worker(const char* name) : name_(name) {
  std::lock_guard<std::mutex> lock(mu_);
  StartLocked();
}

void Worker::StartLocked() {
  std::thread thread([this] { Serve(); });
  pthread_setname_np(thread.native_handle(), name_);
  thread.detach();
  has_thread_ = true;
}

void Worker::Serve() {
  struct AtEnd {
    ~AtEnd() { worker->ThreadEnds(); }
    Worker* const worker;
  } at_end{this};
  for (;;) {
    std::function<void()> job;
    {
      std::unique_lock<std::mutex> lock(mu_);
      wake_.wait(lock, [this] { return !jobs_.empty(); });
      if (Faults::Strikes(Fault::kThreadDies)) return;
      job = std::move(jobs_.extract(jobs_.begin()).mapped());
    }
    job();
  }
}

void Worker::ThreadEnds() {
  std::lock_guard<std::mutex> lock(mu_);
  has_thread_ = false;
  try {
    StartLocked();
  } catch (const std::system_error&) {
    // No thread is available now: the next job tries again.
  }
}

void Worker::Schedule(int64_t place, std::function<void()> job) {
  {
    std::lock_guard<std::mutex> lock(mu_);
    jobs_.emplace(place, std::move(job));
    if (!has_thread_) StartLocked();
  }
  wake_.notify_one();
}

bool Worker::HasBefore(int64_t place) {
  std::lock_guard<std::mutex> lock(mu_);
  return !jobs_.empty() && jobs_.begin()->first < place;
}

}  // namespace tfswap
