#ifndef TFSWAP_CC_CORE_UTIL_FORKED_H_
#define TFSWAP_CC_CORE_UTIL_FORKED_H_

#include <atomic>

namespace tfswap {

// Whether this process was forked off one that had loaded the library. Only the thread that forked
// is here: what another one had locked stays locked, and what it was to do is not done.
extern std::atomic<bool> is_forked;

inline bool IsForked() { return is_forked.load(std::memory_order_relaxed); }

}  // namespace tfswap

#endif  // TFSWAP_CC_CORE_UTIL_FORKED_H_
