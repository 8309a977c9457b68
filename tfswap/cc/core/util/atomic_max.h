#ifndef TFSWAP_CC_CORE_UTIL_ATOMIC_MAX_H_
#define TFSWAP_CC_CORE_UTIL_ATOMIC_MAX_H_

#include <atomic>
#include <cstdint>

namespace tfswap {

// Raise a maximum that several threads update.
inline void RaiseTo(int64_t value, std::atomic<int64_t>* maximum) {
  int64_t known = maximum->load(std::memory_order_relaxed);
  while (value > known && !maximum->compare_exchange_weak(known, value)) {
  }
}

}  // namespace tfswap

#endif  // TFSWAP_CC_CORE_UTIL_ATOMIC_MAX_H_
