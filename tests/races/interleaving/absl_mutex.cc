// Overrides TensorFlow's mutexes, which do not use the system's. Shared locks are exclusive here:
// one thread runs at a time anyway.

#include "interleaving/scheduler.h"
#include "their_mutex.h"

namespace {

using interleaving::Scheduler;

const races::TheirMutex& Theirs() { return races::TheirMutex::Get(); }

void Own(absl::Mutex* mutex) {
  if (Scheduler::IsScheduled()) Scheduler::Get().Own(mutex);
}

void Disown(absl::Mutex* mutex) {
  if (Scheduler::IsScheduled()) Scheduler::Get().Disown(mutex);
}

bool Try(absl::Mutex* mutex, bool (absl::Mutex::*theirs)()) {
  if (Scheduler::IsScheduled() && !Scheduler::Get().TryOwn(mutex)) return false;
  const bool locked = (mutex->*theirs)();
  if (!locked) Disown(mutex);
  return locked;
}

}  // namespace

namespace absl {
ABSL_NAMESPACE_BEGIN

void Mutex::lock() {
  Own(this);
  (this->*Theirs().lock)();
}

void Mutex::unlock() {
  Disown(this);
  (this->*Theirs().unlock)();
}

bool Mutex::try_lock() { return Try(this, Theirs().try_lock); }

void Mutex::lock_shared() {
  Own(this);
  (this->*Theirs().lock_shared)();
}

void Mutex::unlock_shared() {
  Disown(this);
  (this->*Theirs().unlock_shared)();
}

bool Mutex::try_lock_shared() { return Try(this, Theirs().try_lock_shared); }

ABSL_NAMESPACE_END
}  // namespace absl
