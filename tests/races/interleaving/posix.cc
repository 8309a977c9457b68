// Overrides the system's thread functions, for this program and all libraries that it loads: calls
// of scheduled threads go to the scheduler, those of other threads to the system.

#include "interleaving/posix.h"

#include <dirent.h>
#include <dlfcn.h>

#include "interleaving/scheduler.h"

namespace interleaving {

namespace {

template <typename Function>
void Find(Function* function, const char* name, const char* version = nullptr) {
  void* found = version == nullptr ? nullptr : dlvsym(RTLD_NEXT, name, version);
  if (found == nullptr) found = dlsym(RTLD_NEXT, name);
  *function = reinterpret_cast<Function>(found);
}

Posix FindAll() {
  Posix posix;
  Find(&posix.lock, "pthread_mutex_lock");
  Find(&posix.try_lock, "pthread_mutex_trylock");
  Find(&posix.unlock, "pthread_mutex_unlock");
  // There are two; the one without a version may be the older.
  Find(&posix.wait, "pthread_cond_wait", "GLIBC_2.3.2");
  Find(&posix.clock_wait, "pthread_cond_clockwait");
  Find(&posix.timed_wait, "pthread_cond_timedwait", "GLIBC_2.3.2");
  Find(&posix.signal, "pthread_cond_signal", "GLIBC_2.3.2");
  Find(&posix.broadcast, "pthread_cond_broadcast", "GLIBC_2.3.2");
  Find(&posix.create, "pthread_create");
  Find(&posix.join, "pthread_join");
  Find(&posix.set_name, "pthread_setname_np");
  Find(&posix.clock_get, "clock_gettime");
  Find(&posix.sleep, "nanosleep");
  Find(&posix.open_folder, "opendir");
  return posix;
}

int64_t Ns(const timespec& time) { return int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec; }

Scheduler& scheduler() { return Scheduler::Get(); }

}  // namespace

const Posix& Posix::Get() {
  static const Posix posix = FindAll();
  return posix;
}

}  // namespace interleaving

using interleaving::Posix;
using interleaving::scheduler;
using interleaving::Scheduler;

extern "C" {

int pthread_mutex_lock(pthread_mutex_t* mutex) {
  return Scheduler::IsScheduled() ? scheduler().Lock(mutex) : Posix::Get().lock(mutex);
}

int pthread_mutex_trylock(pthread_mutex_t* mutex) {
  return Scheduler::IsScheduled() ? scheduler().TryLock(mutex) : Posix::Get().try_lock(mutex);
}

int pthread_mutex_unlock(pthread_mutex_t* mutex) {
  return Scheduler::IsScheduled() ? scheduler().Unlock(mutex) : Posix::Get().unlock(mutex);
}

int pthread_cond_wait(pthread_cond_t* condition, pthread_mutex_t* mutex) {
  if (!Scheduler::IsScheduled()) return Posix::Get().wait(condition, mutex);
  return scheduler().Wait(condition, mutex, -1);
}

// Its clock is the steady one, and replaces all others.
int pthread_cond_clockwait(pthread_cond_t* condition, pthread_mutex_t* mutex, clockid_t clock,
                           const timespec* deadline) {
  if (!Scheduler::IsScheduled()) {
    return Posix::Get().clock_wait(condition, mutex, clock, deadline);
  }
  return scheduler().Wait(condition, mutex, interleaving::Ns(*deadline));
}

int pthread_cond_timedwait(pthread_cond_t* condition, pthread_mutex_t* mutex,
                           const timespec* deadline) {
  if (!Scheduler::IsScheduled()) return Posix::Get().timed_wait(condition, mutex, deadline);
  return scheduler().Wait(condition, mutex, interleaving::Ns(*deadline));
}

int pthread_cond_signal(pthread_cond_t* condition) {
  if (scheduler().Knows()) scheduler().Wake(condition, false);
  return Posix::Get().signal(condition);
}

int pthread_cond_broadcast(pthread_cond_t* condition) {
  if (scheduler().Knows()) scheduler().Wake(condition, true);
  return Posix::Get().broadcast(condition);
}

int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*start)(void*),
                   void* argument) {
  if (!scheduler().Knows()) return Posix::Get().create(thread, attributes, start, argument);
  return scheduler().Create(thread, attributes, start, argument);
}

int pthread_join(pthread_t thread, void** result) {
  return Scheduler::IsScheduled() ? scheduler().Join(thread, result)
                                  : Posix::Get().join(thread, result);
}

int pthread_setname_np(pthread_t thread, const char* name) {
  if (scheduler().Knows()) scheduler().Name(thread, name);
  return Posix::Get().set_name(thread, name);
}

int clock_gettime(clockid_t clock, timespec* time) {
  if (!Scheduler::IsScheduled()) return Posix::Get().clock_get(clock, time);
  const int64_t now_ns = scheduler().NowNs();
  *time = {static_cast<time_t>(now_ns / 1'000'000'000), static_cast<long>(now_ns % 1'000'000'000)};
  return 0;
}

int nanosleep(const timespec* time, timespec* left) {
  if (!Scheduler::IsScheduled()) return Posix::Get().sleep(time, left);
  scheduler().Sleep(interleaving::Ns(*time));
  return 0;
}

int usleep(useconds_t us) {
  const timespec time = {static_cast<time_t>(us / 1'000'000),
                         static_cast<long>(us % 1'000'000) * 1000};
  return nanosleep(&time, nullptr);
}

// In /proc there are the system's states of threads, not the scheduled ones: time passes only
// when no thread can run.
DIR* opendir(const char* path) {
  return Scheduler::IsScheduled() ? nullptr : Posix::Get().open_folder(path);
}

}  // extern "C"
