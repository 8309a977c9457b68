// Packs into a given height, or proves that it cannot be done.
//
// Ideas of MiniMalloc (Moffitt, "MiniMalloc: A Lightweight Memory Allocator for Hardware-
// Accelerated Machine Learning", ASPLOS 2023): buffers are placed from the bottom up, each as low
// as it goes; moments of time say early that what is left cannot fit; parts of time that share no
// buffer are solved apart. What is added here is said with each rule.

#ifndef TFSWAP_CC_PACKING_EXACT_H_
#define TFSWAP_CC_PACKING_EXACT_H_

#include <atomic>
#include <cstdint>

#include "packing/problem.h"

namespace tfswap::packing {

// Each rule may be switched off: the answer stays, the time does not.
struct ExactRules {
  // At each moment, what is live there is stacked in the order of its lowest offsets: if that
  // passes the height, nothing fits. (MiniMalloc looks at the lowest of those offsets only.)
  bool moments = true;
  // What would push the others over the height if it were the lowest of them is above one of them:
  // "not first", as in scheduling of one machine. (Ours.)
  bool not_first = true;
  // If something fits below all that is left, nothing that is left has to be placed before it.
  bool dominance = true;
  // What was passed over can only come to rest on a buffer that is not placed yet. (Ours.)
  bool support = true;
  // Parts of time that share no buffer any more are solved apart.
  bool decomposition = true;
  // A set of buffers and their lowest offsets that failed once is not tried again. (Ours; told by
  // 128-bit hashes.)
  bool memory = true;
};

struct ExactOptions {
  double seconds = 10.0;
  ExactRules rules;
  uint64_t seed = 1;
  const std::atomic<bool>* cancelled = nullptr;
};

enum class Outcome { kSolved, kImpossible, kOutOfTime };

struct ExactAnswer {
  Outcome outcome = Outcome::kOutOfTime;
  Packing packing;  // if solved
  int64_t nodes = 0;
};

ExactAnswer SolveExactly(const Problem& problem, int64_t capacity, const ExactOptions& options);

}  // namespace tfswap::packing

#endif  // TFSWAP_CC_PACKING_EXACT_H_
