#ifndef TFSWAP_CC_CORE_UTIL_FORKED_H_
#define TFSWAP_CC_CORE_UTIL_FORKED_H_

#include <atomic>

namespace tfswap {

// Whether this process was forked from one that had loaded the library. Only the forking thread
// exists here: locks held by other threads stay locked, and their work is never done.
extern std::atomic<bool> is_forked;

inline bool IsForked() { return is_forked.load(std::memory_order_relaxed); }

}  // namespace tfswap

#endif  // TFSWAP_CC_CORE_UTIL_FORKED_H_
