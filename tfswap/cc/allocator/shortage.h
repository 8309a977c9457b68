#ifndef TFSWAP_CC_ALLOCATOR_SHORTAGE_H_
#define TFSWAP_CC_ALLOCATOR_SHORTAGE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "allocator/recording_allocator.h"

namespace tfswap {

// An allocation for which there is no room: what is known of it, and the error's text.
struct Shortage {
  std::string op;
  int64_t bytes = 0;   // asked for
  int64_t budget = 0;  // 0: the device's own end
  int64_t in_use = 0;
  bool in_pieces = false;         // there is enough, but not in one piece
  bool swapping = false;          // all that could be moved has been moved
  int64_t staying = 0;            // was there before the step
  int64_t own = 0;                // what the op needs at once, `bytes` included
  std::vector<Holder> holders;    // the largest first
  std::string picture;            // of the addresses; "" if there is none
  std::string hindrance;          // why no more could be moved; "" if nothing hindered it
  int64_t missing_far_bytes = 0;  // that far memory had no room for

  // The smallest budget that could work.
  int64_t Smallest() const;
  // What happened, and last, line by line, what to do about it.
  std::string Text() const;

 private:
  std::string WhatHappened() const;
  std::string WhatToDo() const;
  std::string SmallerBatch() const;
};

}  // namespace tfswap

#endif  // TFSWAP_CC_ALLOCATOR_SHORTAGE_H_
