// The same of TensorFlow's mutexes, which do not go by the system's. Those that are shared are as
// if they were not: one thread runs at a time anyway.

#include <dlfcn.h>

#include "absl/synchronization/mutex.h"
#include "interleaving/scheduler.h"

namespace {

using absl::Mutex;
using interleaving::Scheduler;

// The function of that name in the library behind this program.
template <typename Method>
Method Behind(Method own) {
  void* pointers[2] = {};
  static_assert(sizeof(pointers) == sizeof(own));
  __builtin_memcpy(pointers, &own, sizeof(own));
  Dl_info info;
  if (dladdr(pointers[0], &info) == 0) __builtin_trap();
  pointers[0] = dlsym(RTLD_NEXT, info.dli_sname);
  if (pointers[0] == nullptr) __builtin_trap();
  __builtin_memcpy(&own, pointers, sizeof(own));
  return own;
}

struct Own {
  decltype(&Mutex::lock) lock = Behind(&Mutex::lock);
  decltype(&Mutex::unlock) unlock = Behind(&Mutex::unlock);
  decltype(&Mutex::try_lock) try_lock = Behind(&Mutex::try_lock);
  decltype(&Mutex::lock_shared) lock_shared = Behind(&Mutex::lock_shared);
  decltype(&Mutex::unlock_shared) unlock_shared = Behind(&Mutex::unlock_shared);
};

const Own& TheirOwn() {
  static const Own own;
  return own;
}

}  // namespace

namespace absl {
ABSL_NAMESPACE_BEGIN

void Mutex::lock() {
  if (Scheduler::IsScheduled()) Scheduler::Get().Own(this);
  (this->*TheirOwn().lock)();
}

void Mutex::unlock() {
  if (Scheduler::IsScheduled()) Scheduler::Get().Disown(this);
  (this->*TheirOwn().unlock)();
}

bool Mutex::try_lock() {
  if (Scheduler::IsScheduled() && !Scheduler::Get().TryOwn(this)) return false;
  const bool locked = (this->*TheirOwn().try_lock)();
  if (!locked && Scheduler::IsScheduled()) Scheduler::Get().Disown(this);
  return locked;
}

void Mutex::lock_shared() {
  if (Scheduler::IsScheduled()) Scheduler::Get().Own(this);
  (this->*TheirOwn().lock_shared)();
}

void Mutex::unlock_shared() {
  if (Scheduler::IsScheduled()) Scheduler::Get().Disown(this);
  (this->*TheirOwn().unlock_shared)();
}

ABSL_NAMESPACE_END
}  // namespace absl
