#ifndef TESTS_SUPPORT_ALLOCATORS_REPLAY_H_
#define TESTS_SUPPORT_ALLOCATORS_REPLAY_H_

#include <cstdint>
#include <vector>

#include "tensorflow/core/framework/allocator.h"

namespace tfswap {

// An allocation or a free of a recorded step.
struct ReplayEvent {
  int64_t bytes;   // of the allocation; -1: a free
  int64_t block;   // its number, from 0
  int64_t offset;  // its planned offset; -1: none
};

struct ReplayResult {
  int64_t ns = 0;        // of the slowest thread
  int64_t failures = 0;  // refused allocations
};

// Replays a step `repeats` times on each of `threads` threads at once. The slots of each thread are
// `height` bytes above those of the previous one.
ReplayResult Replay(tensorflow::Allocator* allocator, const std::vector<ReplayEvent>& events,
                    int64_t height, int threads, int repeats);

}  // namespace tfswap

#endif  // TESTS_SUPPORT_ALLOCATORS_REPLAY_H_
