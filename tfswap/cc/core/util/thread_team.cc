#include "core/util/thread_team.h"

#include <algorithm>
#include <system_error>
#include <thread>

#include "core/util/faults.h"

namespace tfswap {

ThreadTeam& ThreadTeam::Shared() {
  static ThreadTeam* const team = new ThreadTeam;  // its threads outlive main()
  return *team;
}

void ThreadTeam::RunParallel(int threads, const std::function<void()>& work) {
  if (threads <= 1) {
    work();
    return;
  }
  Job job = {&work, threads - 1};
  {
    std::lock_guard<std::mutex> lock(mu_);
    StartUpTo(threads - 1);
    jobs_.push_back(&job);
  }
  if (threads == 2) {
    work_available_.notify_one();
  } else {
    work_available_.notify_all();
  }
  work();
  std::unique_lock<std::mutex> lock(mu_);
  jobs_.erase(std::remove(jobs_.begin(), jobs_.end(), &job), jobs_.end());
  finished_.wait(lock, [&job] { return job.working == 0; });
}

void ThreadTeam::StartUpTo(int threads) {
  try {
    for (; threads_ < threads; ++threads_) std::thread([this] { Serve(); }).detach();
  } catch (const std::system_error&) {
    // No more threads are available; the existing ones do the work.
  }
}

void ThreadTeam::Serve() {
  std::unique_lock<std::mutex> lock(mu_);
  while (true) {
    work_available_.wait(lock, [this] { return !jobs_.empty(); });
    if (Faults::Strikes(Fault::kThreadDies)) {
      --threads_;  // the next job starts a new thread
      return;
    }
    Job* const job = jobs_.front();
    ++job->working;
    if (--job->open_slots == 0) jobs_.pop_front();
    lock.unlock();
    (*job->work)();
    lock.lock();
    if (--job->working == 0) finished_.notify_all();
  }
}

}  // namespace tfswap
