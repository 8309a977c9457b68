// Local search: a plan made a little different again and again, kept where that is no worse.
//
// Moves change one swap at a time where it hurts (an op waits for it) or at random: an absence
// dropped, taken up, exchanged for another one that spans the same moment; a gate or a trigger put
// some possible ops earlier or later. The same input tries the same plans in the same order.
//
// No TensorFlow here.

#ifndef TFSWAP_CC_CORE_SIMULATE_LOCAL_SEARCH_H_
#define TFSWAP_CC_CORE_SIMULATE_LOCAL_SEARCH_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "core/simulate/simulator.h"
#include "core/simulate/timeline.h"

namespace tfswap {

// What becomes of a buffer in far memory; see Swap.
struct FarForm {
  Bytes far_bytes = -1;
  Nanoseconds encode_ns = 0;
  Nanoseconds decode_ns = 0;
};

// What a plan may be, and what it is to be good at.
struct SearchRules {
  std::vector<bool> usable;              // by op: may gate or trigger
  std::vector<int32_t> op_context;       // by op; gates and triggers are of the absence's context
  std::vector<int32_t> absence_context;  // by absence
  std::vector<FarForm> forms;            // by absence, of swaps that are taken up; empty: as it is
  Bytes min_bytes = 1;                   // smaller buffers stay
  Tier tier;
  Bytes limit_bytes = 0;           // of the load
  std::optional<Tier> slow;        // the limit must hold on this link too
  double copying_ns_per_byte = 0;  // what the step takes longer for each byte moved
  Nanoseconds enough_ns = 0;       // shorter waits need no search
};

// SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", 2014).
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t Next();
  double Unit() { return static_cast<double>(Next() >> 11) * 0x1.0p-53; }
  int64_t Below(int64_t bound) { return static_cast<int64_t>(Unit() * static_cast<double>(bound)); }
  bool Chance(double probability) { return Unit() < probability; }

 private:
  uint64_t state_;
};

class LocalSearch {
 public:
  // `swaps` is the plan to begin with, not empty. Throws std::invalid_argument as Simulate does,
  // and if the rules do not fit the timeline.
  LocalSearch(std::shared_ptr<const Timeline> timeline, SearchRules rules, std::vector<Swap> swaps,
              uint64_t seed);

  // Tries until so many plans were tried in all, or so long; says whether there is more to do.
  bool Run(double seconds, int64_t tries);

  // The best plan so far, by absence, and what it waits.
  const std::vector<Swap>& swaps() const { return swaps_; }
  Nanoseconds stall_ns() const { return result_.stall_ns; }
  int64_t tried() const { return tried_; }

 private:
  // Ops of one context that may be anchors, in two orders.
  struct Anchors {
    int32_t context;
    std::vector<int32_t> by_start, starts;
    std::vector<int32_t> by_end, ends;
  };
  // An absence that may be used; gates and triggers are stretches of its context's anchors.
  struct Option {
    int32_t absence;
    Bytes bytes;
    int32_t begins, ends;  // places among the events
    bool crosses;
    const Anchors* anchors;
    int32_t first_gate, num_gates;
    int32_t first_trigger, num_triggers;
  };
  using Cost = std::pair<double, Bytes>;

  void ListAnchors();
  void ListOptions();
  const Anchors& AnchorsOf(int32_t context) const;
  Cost CostOf(const SimResult& result) const;
  bool HoldsOnASlowLink(const std::vector<Swap>& swaps) const;
  void Try();

  bool MakeNeighbour(std::vector<Swap>* swaps);
  size_t PickSwap();
  void Shift(Swap* swap);
  Swap Like(const Swap& swap, const Option& other) const;
  // An option that is not used and spans a moment of this one, large ones more often.
  const Option* Beside(const Option& option);
  const Option& OptionOf(int32_t absence) const { return options_[option_of_[absence]]; }

  std::shared_ptr<const Timeline> timeline_;
  SearchRules rules_;
  std::vector<Tier> tiers_, slow_tiers_;
  std::vector<std::unique_ptr<Anchors>> anchors_;
  std::vector<Option> options_;
  std::vector<int32_t> option_of_;  // by absence; -1: none
  std::vector<bool> used_;          // by absence
  Random random_;

  std::vector<Swap> swaps_;
  SimResult result_;
  Cost cost_;
  int64_t tried_ = 0;
};

}  // namespace tfswap

#endif  // TFSWAP_CC_CORE_SIMULATE_LOCAL_SEARCH_H_
