#ifndef TFSWAP_CC_ALLOCATOR_SHORTAGE_H_
#define TFSWAP_CC_ALLOCATOR_SHORTAGE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "allocator/recording_allocator.h"

namespace tfswap {

// An allocation that did not fit, and its error message.
struct Shortage {
  std::string op;
  int64_t bytes = 0;   // requested
  int64_t budget = 0;  // 0: no budget; the device's memory is full
  int64_t in_use = 0;
  bool in_pieces = false;         // enough is free, but fragmented
  bool swapping = false;          // swaps are active, and everything movable has been swapped out
  int64_t staying = 0;            // in use before the step
  int64_t own = 0;                // what the op needs at once, including `bytes`
  std::vector<Holder> holders;    // the largest first
  std::string picture;            // of the addresses; "" if there is none
  std::string why_blocked;        // why no more could be swapped out; "" if nothing blocked it
  int64_t missing_far_bytes = 0;  // that did not fit in far memory

  // Return the smallest budget that could work.
  int64_t Smallest() const;
  // Return what happened, and then, one per line, what the user can do.
  std::string Text() const;

 private:
  std::string WhatHappened() const;
  std::string WhatToDo() const;
  std::string SmallerBatch() const;
};

}  // namespace tfswap

#endif  // TFSWAP_CC_ALLOCATOR_SHORTAGE_H_
