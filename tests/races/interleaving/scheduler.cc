#include "interleaving/scheduler.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <utility>

#include "interleaving/posix.h"

namespace interleaving {

namespace {

// A run of a small program with more events does not end.
constexpr size_t kMostEvents = 200'000;
constexpr size_t kPrintedEvents = 400;
// The time that each reading of the clock takes, so that no thread polls forever.
constexpr int64_t kLookNs = 50;

void Take(sem_t* semaphore) {
  while (sem_wait(semaphore) != 0) {
  }
}

bool IsRecursive(const pthread_mutex_t* mutex) {
  return (mutex->__data.__kind & 3) == PTHREAD_MUTEX_RECURSIVE;
}

extern "C" void HandleSignal(int signal) { Scheduler::Get().FailFromSignal(signal); }

}  // namespace

thread_local Scheduler::Thread* Scheduler::self_ = nullptr;

Scheduler& Scheduler::Get() {
  static Scheduler* const scheduler = [] {
    auto* made = new Scheduler();
    sem_init(&made->over_, 0, 0);
    return made;
  }();
  return *scheduler;
}

bool Scheduler::IsScheduled() { return self_ != nullptr; }

void Scheduler::Run(const std::vector<std::pair<std::string, std::function<void()>>>& clients,
                    Choices* choices) {
  for (const int signal : {SIGSEGV, SIGBUS, SIGABRT, SIGFPE}) ::signal(signal, HandleSignal);
  choices->BeginRun();
  choices_ = choices;
  events_.clear();
  clients_.clear();
  for (const auto& [name, body] : clients) {
    auto client = std::make_unique<Thread>();
    client->id = static_cast<int>(clients_.size());
    client->name = name;
    client->argument = const_cast<std::function<void()>*>(&body);
    client->start = [](void* body) -> void* {
      (*static_cast<std::function<void()>*>(body))();
      return nullptr;
    };
    clients_.push_back(std::move(client));
  }
  for (const auto& client : clients_) {
    if (Posix::Get().create(&client->handle, nullptr, &Begin, client.get()) != 0) {
      Fail("no thread could be started");
    }
  }
  // As if there had been no run before.
  for (const auto& resident : residents_) resident->turn = resident->id;
  running_ = true;
  if (Thread* first = Choose(nullptr)) {
    sem_post(&first->baton);
    Take(&over_);
  }
  running_ = false;
  for (const auto& client : clients_) Posix::Get().join(client->handle, nullptr);
}

void* Scheduler::Begin(void* thread) {
  auto* own = static_cast<Thread*>(thread);
  Take(&own->baton);
  self_ = own;
  own->result = own->start(own->argument);
  self_ = nullptr;
  Get().End(own);
  return own->result;
}

void Scheduler::End(Thread* thread) {
  thread->state = State::kEnded;
  Thread* next = Choose(thread);
  sem_post(next == nullptr ? &over_ : &next->baton);
}

bool Scheduler::IsEnabled(const Thread& thread) const {
  switch (thread.state) {
    case State::kReady:
      return true;
    case State::kLocking: {
      const auto owner = owners_.find(thread.on);
      return owner == owners_.end() || owner->second.first == &thread;
    }
    case State::kJoining:
      return static_cast<const Thread*>(thread.on)->state == State::kEnded;
    case State::kWaiting:
    case State::kEnded:
      break;
  }
  return false;
}

Scheduler::Thread* Scheduler::FirstDue() {
  Thread* first = nullptr;
  for (const auto* threads : {&clients_, &residents_}) {
    for (const auto& thread : *threads) {
      if (thread->state != State::kWaiting || thread->deadline_ns < 0) continue;
      if (first == nullptr || thread->deadline_ns < first->deadline_ns) first = thread.get();
    }
  }
  return first;
}

void Scheduler::LetTimePass(Thread* until) {
  now_ns_ = std::max(now_ns_, until->deadline_ns);
  until->deadline_ns = -1;
  until->timed_out = true;
  until->state = until->mutex == nullptr ? State::kReady : State::kLocking;
  until->on = until->mutex;
}

Scheduler::Thread* Scheduler::ById(int id) {
  return id < kFirstResident ? clients_[id].get() : residents_[id - kFirstResident].get();
}

Scheduler::Thread* Scheduler::Choose(Thread* current) {
  static std::vector<int> able;
  for (;;) {
    able.clear();
    const bool can_go_on = current != nullptr && IsEnabled(*current);
    if (can_go_on) able.push_back(current->id);
    for (const auto* threads : {&clients_, &residents_}) {
      for (const auto& thread : *threads) {
        if (thread.get() != current && IsEnabled(*thread)) able.push_back(thread->id);
      }
    }
    // The others may also be so slow that a deadline expires.
    Thread* const due = FirstDue();
    const size_t enabled = able.size();
    if (due != nullptr) able.push_back(due->id);
    if (able.empty()) break;
    Thread* const chosen =
        ById(able.size() == 1 ? able[0] : choices_->Next(able, can_go_on, enabled));
    if (chosen != due) return chosen;
    LetTimePass(due);
  }
  for (const auto& client : clients_) {
    if (client->state != State::kEnded) Fail("a deadlock");
  }
  return nullptr;
}

void Scheduler::GoOn(Thread* current) {
  Thread* next = Choose(current);
  if (next == current) return;
  sem_post(next == nullptr ? &over_ : &next->baton);
  Take(&current->baton);
}

void Scheduler::Note(const char* what, const void* object) {
  events_.push_back({self_->id, what, object});
  if (events_.size() > kMostEvents) Fail("no end");
}

void Scheduler::Point(const char* what, const void* object) {
  Note(what, object);
  GoOn(self_);
}

int Scheduler::Lock(pthread_mutex_t* mutex) {
  const auto known = owners_.find(mutex);
  if (known != owners_.end() && known->second.first == self_ && IsRecursive(mutex)) {
    ++known->second.second;
  } else {
    Own(mutex);
  }
  return Posix::Get().lock(mutex);
}

int Scheduler::TryLock(pthread_mutex_t* mutex) {
  if (!TryOwn(mutex)) return EBUSY;
  const int answer = Posix::Get().try_lock(mutex);
  if (answer != 0) Disown(mutex);
  return answer;
}

int Scheduler::Unlock(pthread_mutex_t* mutex) {
  Disown(mutex);
  return Posix::Get().unlock(mutex);
}

void Scheduler::Own(const void* mutex) {
  const auto known = owners_.find(mutex);
  if (known != owners_.end() && known->second.first == self_) {
    Fail("a thread locks what it has locked");
  }
  Note("lock", mutex);
  self_->state = State::kLocking;
  self_->on = mutex;
  GoOn(self_);
  self_->state = State::kReady;
  owners_[mutex] = {self_, 1};
}

bool Scheduler::TryOwn(const void* mutex) {
  Point("try lock", mutex);
  const auto known = owners_.find(mutex);
  if (known != owners_.end() && known->second.first != self_) return false;
  auto& [owner, depth] = owners_[mutex];
  owner = self_;
  ++depth;
  return true;
}

void Scheduler::Disown(const void* mutex) {
  const auto known = owners_.find(mutex);
  if (known != owners_.end() && --known->second.second == 0) owners_.erase(known);
}

int Scheduler::Wait(pthread_cond_t* condition, pthread_mutex_t* mutex, int64_t deadline_ns) {
  Note(deadline_ns < 0 ? "wait" : "wait a while", condition);
  Unlock(mutex);
  self_->state = State::kWaiting;
  self_->on = condition;
  self_->mutex = mutex;
  self_->deadline_ns = deadline_ns;
  self_->timed_out = false;
  self_->turn = ++turns_;
  GoOn(self_);
  self_->state = State::kReady;
  self_->mutex = nullptr;
  owners_[mutex] = {self_, 1};
  Posix::Get().lock(mutex);
  return self_->timed_out ? ETIMEDOUT : 0;
}

int Scheduler::Wake(pthread_cond_t* condition, bool all) {
  if (IsScheduled()) Point(all ? "wake all" : "wake one", condition);
  for (;;) {
    Thread* first = nullptr;
    for (const auto* threads : {&clients_, &residents_}) {
      for (const auto& thread : *threads) {
        if (thread->state != State::kWaiting || thread->on != condition) continue;
        if (first == nullptr || thread->turn < first->turn) first = thread.get();
      }
    }
    if (first == nullptr) return 0;
    first->state = State::kLocking;
    first->on = first->mutex;
    first->deadline_ns = -1;
    if (!all) return 0;
  }
}

void Scheduler::Sleep(int64_t ns) {
  Note("sleep", nullptr);
  self_->state = State::kWaiting;
  self_->on = nullptr;
  self_->mutex = nullptr;
  self_->deadline_ns = now_ns_ + ns;
  GoOn(self_);
  self_->state = State::kReady;
}

int64_t Scheduler::NowNs() { return now_ns_ += kLookNs; }

int Scheduler::Create(pthread_t* thread, const pthread_attr_t* attributes, void* (*start)(void*),
                      void* argument) {
  auto made = std::make_unique<Thread>();
  made->id = kFirstResident + static_cast<int>(residents_.size());
  made->name = "thread " + std::to_string(made->id);
  made->start = start;
  made->argument = argument;
  Thread* const own = made.get();
  residents_.push_back(std::move(made));
  const int answer = Posix::Get().create(&own->handle, attributes, &Begin, own);
  if (answer != 0) own->state = State::kEnded;
  *thread = own->handle;
  return answer;
}

int Scheduler::Join(pthread_t thread, void** result) {
  for (const auto& each : residents_) {
    if (!pthread_equal(each->handle, thread)) continue;
    Note("join", each.get());
    self_->state = State::kJoining;
    self_->on = each.get();
    GoOn(self_);
    self_->state = State::kReady;
  }
  return Posix::Get().join(thread, result);
}

void Scheduler::Name(pthread_t thread, const char* name) {
  for (const auto& each : residents_) {
    if (each->state != State::kEnded && pthread_equal(each->handle, thread)) each->name = name;
  }
}

std::string Scheduler::Describe(const Thread& thread) const {
  switch (thread.state) {
    case State::kReady:
      return "runs";
    case State::kLocking:
      return IsEnabled(thread) ? "runs" : "waits for a lock";
    case State::kWaiting:
      return thread.deadline_ns < 0 ? "waits" : "waits a while";
    case State::kJoining:
      return "waits for a thread's end";
    case State::kEnded:
      return "has ended";
  }
  return "";
}

void Scheduler::PrintSchedule() {
  std::map<const void*, int> numbers;
  const size_t from = events_.size() > kPrintedEvents ? events_.size() - kPrintedEvents : 0;
  if (from > 0) std::fprintf(stderr, "  ... %zu before\n", from);
  int last = -1;
  for (size_t i = from; i < events_.size(); ++i) {
    const Event& event = events_[i];
    const int number =
        numbers.emplace(event.object, static_cast<int>(numbers.size()) + 1).first->second;
    if (event.thread != last) {
      std::fprintf(stderr, "%s  %-14s", last < 0 ? "" : "\n", ById(event.thread)->name.c_str());
    }
    std::fprintf(stderr, " %s %d;", event.what, number);
    last = event.thread;
  }
  std::fprintf(stderr, "\n");
  for (const auto* threads : {&clients_, &residents_}) {
    for (const auto& thread : *threads) {
      std::fprintf(stderr, "  %s %s\n", thread->name.c_str(), Describe(*thread).c_str());
    }
  }
}

void Scheduler::Fail(const std::string& why) {
  std::fprintf(stderr, "FAILED: %s\nby this schedule:\n", why.c_str());
  PrintSchedule();
  std::fflush(stderr);
  _exit(1);
}

void Scheduler::FailFromSignal(int signal) {
  ::signal(signal, SIG_DFL);
  Fail("a crash: signal " + std::to_string(signal));
}

}  // namespace interleaving
