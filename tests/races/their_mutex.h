#ifndef TFSWAP_TESTS_RACES_THEIR_MUTEX_H_
#define TFSWAP_TESTS_RACES_THEIR_MUTEX_H_

#include <dlfcn.h>

#include "absl/synchronization/mutex.h"

namespace races {

// The function of the same name in the libraries, which this program overrides.
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

// The operations of TensorFlow's mutexes, for programs that override them.
struct TheirMutex {
  using Mutex = absl::Mutex;

  decltype(&Mutex::lock) lock = Behind(&Mutex::lock);
  decltype(&Mutex::unlock) unlock = Behind(&Mutex::unlock);
  decltype(&Mutex::try_lock) try_lock = Behind(&Mutex::try_lock);
  decltype(&Mutex::lock_shared) lock_shared = Behind(&Mutex::lock_shared);
  decltype(&Mutex::try_lock_shared) try_lock_shared = Behind(&Mutex::try_lock_shared);
  decltype(&Mutex::unlock_shared) unlock_shared = Behind(&Mutex::unlock_shared);

  static const TheirMutex& Get() {
    static const TheirMutex theirs;
    return theirs;
  }
};

}  // namespace races

#endif  // TFSWAP_TESTS_RACES_THEIR_MUTEX_H_
