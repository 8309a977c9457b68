#ifndef TFSWAP_CC_CORE_UTIL_RUNNABLE_THREADS_H_
#define TFSWAP_CC_CORE_UTIL_RUNNABLE_THREADS_H_

namespace tfswap {

// Return whether another thread of this process runs, is runnable, or waits for a disk. Takes some
// microseconds per thread; false if the system does not report thread states.
bool OthersAreRunnable();

}  // namespace tfswap

#endif  // TFSWAP_CC_CORE_UTIL_RUNNABLE_THREADS_H_
