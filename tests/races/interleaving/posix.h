#ifndef TFSWAP_TESTS_RACES_INTERLEAVING_POSIX_H_
#define TFSWAP_TESTS_RACES_INTERLEAVING_POSIX_H_

#include <dirent.h>
#include <pthread.h>
#include <time.h>

namespace interleaving {

// The system's own functions, which those of posix.cc override.
struct Posix {
  int (*lock)(pthread_mutex_t*);
  int (*try_lock)(pthread_mutex_t*);
  int (*unlock)(pthread_mutex_t*);
  int (*wait)(pthread_cond_t*, pthread_mutex_t*);
  int (*clock_wait)(pthread_cond_t*, pthread_mutex_t*, clockid_t, const timespec*);
  int (*timed_wait)(pthread_cond_t*, pthread_mutex_t*, const timespec*);
  int (*signal)(pthread_cond_t*);
  int (*broadcast)(pthread_cond_t*);
  int (*create)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
  int (*join)(pthread_t, void**);
  int (*set_name)(pthread_t, const char*);
  int (*clock_get)(clockid_t, timespec*);
  int (*sleep)(const timespec*, timespec*);
  DIR* (*open_folder)(const char*);

  static const Posix& Get();
};

}  // namespace interleaving

#endif  // TFSWAP_TESTS_RACES_INTERLEAVING_POSIX_H_
