#ifndef TFSWAP_CC_CORE_UTIL_NOW_H_
#define TFSWAP_CC_CORE_UTIL_NOW_H_

#include <chrono>
#include <cstdint>

namespace tfswap {

// Return the time of the clock that all traces and waits use.
inline int64_t NowNs() {
  return std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
}

}  // namespace tfswap

#endif  // TFSWAP_CC_CORE_UTIL_NOW_H_
