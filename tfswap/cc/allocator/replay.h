#ifndef TFSWAP_CC_ALLOCATOR_REPLAY_H_
#define TFSWAP_CC_ALLOCATOR_REPLAY_H_

#include <cstdint>
#include <vector>

#include "tensorflow/core/framework/allocator.h"

namespace tfswap {

// One thing that a recorded step did.
struct ReplayEvent {
  int64_t bytes;   // asked for; -1: a free
  int64_t block;   // which one, from 0
  int64_t offset;  // its planned place; -1: none
};

struct ReplayResult {
  int64_t ns = 0;        // of all threads' allocations and frees, from the first to the last
  int64_t failures = 0;  // allocations that were refused
};

// Replays a step `repeats` times on each of `threads` threads at once, each with slots of its own,
// a `height` above those of the thread before.
ReplayResult Replay(tensorflow::Allocator* allocator, const std::vector<ReplayEvent>& events,
                    int64_t height, int threads, int repeats);

}  // namespace tfswap

#endif  // TFSWAP_CC_ALLOCATOR_REPLAY_H_
