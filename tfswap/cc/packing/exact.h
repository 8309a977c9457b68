// Exact solver: packs into a given height, or proves that it is impossible.
//
// Based on MiniMalloc (Moffitt, "MiniMalloc: A Lightweight Memory Allocator for
// Hardware-Accelerated Machine Learning", ASPLOS 2023): buffers are placed bottom-up, each as low
// as possible; sets of buffers that are live together detect infeasibility early; parts that share
// no time are solved independently. Additions are marked at each rule.

#ifndef TFSWAP_CC_PACKING_EXACT_H_
#define TFSWAP_CC_PACKING_EXACT_H_

#include <atomic>
#include <cstdint>

#include "packing/problem.h"

namespace tfswap::packing {

// Each rule may be disabled; that changes the time, not the answer.
struct ExactRules {
  // For each maximal set of buffers that are live together: stack them in the order of their lower
  // bounds; if that exceeds the height, the state is infeasible. (MiniMalloc uses the lowest bound
  // of the set only.)
  bool moments = true;
  // A buffer that as the lowest of a set would push the others beyond the height must be above one
  // of them: "not first" of single-machine scheduling. (New.)
  bool not_first = true;
  // If a buffer fits below all remaining ones, none of them is placed before it.
  bool dominance = true;
  // A skipped buffer must rest on a buffer that is not placed yet. (New.)
  bool support = true;
  // Parts that share no time any more are solved independently.
  bool decomposition = true;
  // A set of buffers with lower bounds that failed is not tried again. (New; identified by 128-bit
  // hashes.)
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
