#ifndef TFSWAP_TESTS_RACES_INTERLEAVING_SCHEDULER_H_
#define TFSWAP_TESTS_RACES_INTERLEAVING_SCHEDULER_H_

#include <pthread.h>
#include <semaphore.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "interleaving/choices.h"

namespace interleaving {

// Runs threads one at a time, and chooses the next one when a thread locks a mutex, wakes another
// one or changes an atomic: so it explores the interleavings of a program without its knowledge.
// The threads' calls of the system's thread functions (posix.cc) and, in objects that were compiled
// for it, of atomics (instrumented.cc) come here.
//
//   client a   ▓▓▓ lock       ▓▓ unlock ... end        one baton: ▓ is its holder
//   client b        ░ (waits)            ▓▓▓ end
//   resident          ▓▓▓ wait on a condition          threads of the tested code
//
// Time stands still, and jumps to the next deadline when no thread can run, or when all others are
// chosen to be that slow. The runs are sequentially consistent: ThreadSanitizer covers weaker
// orders.
class Scheduler {
 public:
  static Scheduler& Get();

  // Between runs: threads that start now are residents, which stay, and are scheduled in each
  // run.
  void Adopt(bool adopt) { adopting_ = adopt; }
  // One run: until all clients have ended and all residents wait without a deadline. End the
  // program with the schedule if that never happens.
  void Run(const std::vector<std::pair<std::string, std::function<void()>>>& clients,
           Choices* choices);
  // End the program with the reason and the schedule.
  [[noreturn]] void Fail(const std::string& why);
  [[noreturn]] void FailFromSignal(int signal);
  // The number of points of the last run.
  void PrintSchedule();
  int64_t points() const { return static_cast<int64_t>(events_.size()); }

  // Return whether the calling thread is scheduled here.
  static bool IsScheduled();
  // For the calling thread, which is scheduled. Like the functions of the same names.
  int Lock(pthread_mutex_t* mutex);
  int TryLock(pthread_mutex_t* mutex);
  int Unlock(pthread_mutex_t* mutex);
  // For other kinds of mutexes: before the lock, whether it can be locked, and before the unlock.
  void Own(const void* mutex);
  bool TryOwn(const void* mutex);
  void Disown(const void* mutex);
  int Wait(pthread_cond_t* condition, pthread_mutex_t* mutex, int64_t deadline_ns);
  // Also between runs, for the thread that starts residents.
  int Wake(pthread_cond_t* condition, bool all);
  void Sleep(int64_t ns);
  int Join(pthread_t thread, void** result);
  int64_t NowNs();
  // Let another thread run first.
  void Point(const char* what, const void* object);
  // Like pthread_create.
  int Create(pthread_t* thread, const pthread_attr_t* attributes, void* (*start)(void*),
             void* argument);
  bool Knows() const { return adopting_ || IsScheduled(); }
  void Name(pthread_t thread, const char* name);

 private:
  enum class State { kReady, kLocking, kWaiting, kJoining, kEnded };
  struct Thread {
    int id = 0;
    std::string name;
    pthread_t handle = {};
    State state = State::kReady;
    const void* on = nullptr;          // mutex, condition or thread
    pthread_mutex_t* mutex = nullptr;  // to lock again after the wait
    int64_t deadline_ns = -1;          // of a wait
    int64_t turn = 0;                  // waiters are woken in order of arrival
    bool timed_out = false;
    sem_t baton;
    void* (*start)(void*) = nullptr;
    void* argument = nullptr;
    void* result = nullptr;
    Thread() { sem_init(&baton, 0, 0); }
  };
  struct Event {
    int thread;
    const char* what;
    const void* object;
  };
  static constexpr int kFirstResident = 100;

  static void* Begin(void* thread);
  void End(Thread* thread);
  bool IsEnabled(const Thread& thread) const;
  // The thread with the nearest deadline; null if there is none.
  Thread* FirstDue();
  void LetTimePass(Thread* until);
  // Pass the baton to the chosen thread, and return when this thread has it again.
  void GoOn(Thread* current);
  Thread* Choose(Thread* current);
  Thread* ById(int id);
  std::string Describe(const Thread& thread) const;
  void Note(const char* what, const void* object);

  bool adopting_ = false;
  bool running_ = false;
  Choices* choices_ = nullptr;
  std::vector<std::unique_ptr<Thread>> residents_, clients_;
  std::map<const void*, std::pair<Thread*, int>> owners_;  // the locked mutexes, and how often each
  int64_t turns_ = 0;
  int64_t now_ns_ = 1'000'000'000'000;
  std::vector<Event> events_;
  sem_t over_;

  static thread_local Thread* self_;
};

}  // namespace interleaving

#endif  // TFSWAP_TESTS_RACES_INTERLEAVING_SCHEDULER_H_
