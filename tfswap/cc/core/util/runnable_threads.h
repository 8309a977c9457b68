#ifndef TFSWAP_CC_CORE_UTIL_RUNNABLE_THREADS_H_
#define TFSWAP_CC_CORE_UTIL_RUNNABLE_THREADS_H_

namespace tfswap {

// Whether another thread of this process runs, would if it had a core, or waits for a disk. Takes
// some microseconds a thread; where the system does not say, the answer is no.
bool OthersAreRunnable();

}  // namespace tfswap

#endif  // TFSWAP_CC_CORE_UTIL_RUNNABLE_THREADS_H_
