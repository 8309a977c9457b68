// The functions that objects call that were compiled with -fsanitize=thread, without
// ThreadSanitizer: each change of an atomic, and each load that orders others, is a scheduling
// point.

#include <cstdint>

#include "interleaving/scheduler.h"

namespace {

using interleaving::Scheduler;

void Point(const char* what, const volatile void* atomic) {
  if (Scheduler::IsScheduled()) Scheduler::Get().Point(what, const_cast<const void*>(atomic));
}

}  // namespace

extern "C" {

void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_read(void**) {}
void __tsan_vptr_update(void**, void*) {}
void __tsan_read_range(void*, unsigned long) {}
void __tsan_write_range(void*, unsigned long) {}
void __tsan_atomic_thread_fence(int) {}
void __tsan_atomic_signal_fence(int) {}

#define PLAIN(bytes)                         \
  void __tsan_read##bytes(void*) {}          \
  void __tsan_write##bytes(void*) {}         \
  void __tsan_volatile_read##bytes(void*) {} \
  void __tsan_volatile_write##bytes(void*) {}
PLAIN(1)
PLAIN(2)
PLAIN(4)
PLAIN(8)
PLAIN(16)

#define UNALIGNED(bytes)                      \
  void __tsan_unaligned_read##bytes(void*) {} \
  void __tsan_unaligned_write##bytes(void*) {}
UNALIGNED(2)
UNALIGNED(4)
UNALIGNED(8)
UNALIGNED(16)

#define CHANGE(bits, name, function)                                           \
  uint##bits##_t __tsan_atomic##bits##_##name(volatile uint##bits##_t* atomic, \
                                              uint##bits##_t value, int) {     \
    Point(#name, atomic);                                                      \
    return function(atomic, value, __ATOMIC_SEQ_CST);                          \
  }

#define ATOMIC(bits)                                                                               \
  uint##bits##_t __tsan_atomic##bits##_load(const volatile uint##bits##_t* atomic, int order) {    \
    if (order != __ATOMIC_RELAXED) Point("load", atomic);                                          \
    return __atomic_load_n(atomic, __ATOMIC_SEQ_CST);                                              \
  }                                                                                                \
  void __tsan_atomic##bits##_store(volatile uint##bits##_t* atomic, uint##bits##_t value, int) {   \
    Point("store", atomic);                                                                        \
    __atomic_store_n(atomic, value, __ATOMIC_SEQ_CST);                                             \
  }                                                                                                \
  CHANGE(bits, exchange, __atomic_exchange_n)                                                      \
  CHANGE(bits, fetch_add, __atomic_fetch_add)                                                      \
  CHANGE(bits, fetch_sub, __atomic_fetch_sub)                                                      \
  CHANGE(bits, fetch_and, __atomic_fetch_and)                                                      \
  CHANGE(bits, fetch_or, __atomic_fetch_or)                                                        \
  CHANGE(bits, fetch_xor, __atomic_fetch_xor)                                                      \
  int __tsan_atomic##bits##_compare_exchange_strong(                                               \
      volatile uint##bits##_t* atomic, uint##bits##_t* expected, uint##bits##_t value, int, int) { \
    Point("compare exchange", atomic);                                                             \
    return __atomic_compare_exchange_n(atomic, expected, value, false, __ATOMIC_SEQ_CST,           \
                                       __ATOMIC_SEQ_CST);                                          \
  }                                                                                                \
  int __tsan_atomic##bits##_compare_exchange_weak(                                                 \
      volatile uint##bits##_t* atomic, uint##bits##_t* expected, uint##bits##_t value, int, int) { \
    return __tsan_atomic##bits##_compare_exchange_strong(atomic, expected, value, 0, 0);           \
  }

ATOMIC(8) ATOMIC(16) ATOMIC(32) ATOMIC(64)

}  // extern "C"
