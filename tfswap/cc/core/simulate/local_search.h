// Local search: change a plan slightly, again and again, and keep a change unless it is worse.
//
// A move changes one swap, chosen among those that an op waits for or at random: it drops an
// absence, adds one, exchanges it for another one that overlaps it in time, or shifts a gate or a
// trigger by some ops. Deterministic: equal inputs try the same plans in the same order.
//
// Independent of TensorFlow.

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

// The size and codec times of a buffer in far memory; see Swap.
struct FarForm {
  Bytes far_bytes = -1;
  Nanoseconds encode_ns = 0;
  Nanoseconds decode_ns = 0;
};

// The constraints and the objective of the search.
struct SearchRules {
  std::vector<bool> usable;         // by op: may be a gate or a trigger
  std::vector<int32_t> op_context;  // by op; gates and triggers must have the absence's context
  std::vector<int32_t> absence_context;  // by absence
  std::vector<FarForm> forms;  // by absence, for swaps that are added; empty: plain copies
  Bytes min_bytes = 1;         // smaller buffers are not swapped
  Tier tier;
  Bytes limit_bytes = 0;           // on the load
  std::optional<Tier> slow;        // the limit must hold with this slower link, too
  double copying_ns_per_byte = 0;  // time that the step loses per copied byte
  Nanoseconds enough_ns = 0;       // the search stops below this stall time
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
  // `swaps` is the initial plan and must not be empty. Throws std::invalid_argument like Simulate,
  // or if the rules do not match the timeline.
  LocalSearch(std::shared_ptr<const Timeline> timeline, SearchRules rules, std::vector<Swap> swaps,
              uint64_t seed);

  // Search until `tries` plans have been tried in total or `seconds` have passed; return whether
  // the search could continue.
  bool Run(double seconds, int64_t tries);

  // The best plan so far, sorted by absence, and its stall time.
  const std::vector<Swap>& swaps() const { return swaps_; }
  Nanoseconds stall_ns() const { return result_.stall_ns; }
  int64_t tried() const { return tried_; }

 private:
  // Ops of one context that may be gates or triggers, in two orders.
  struct Anchors {
    int32_t context;
    std::vector<int32_t> by_start, starts;
    std::vector<int32_t> by_end, ends;
  };
  // A candidate absence; its gates and triggers are ranges of its context's anchors.
  struct Option {
    int32_t absence;
    Bytes bytes;
    int32_t begins, ends;  // positions among the events
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
  bool FitsOnSlowLink(const std::vector<Swap>& swaps) const;
  void Try();

  bool MakeNeighbour(std::vector<Swap>* swaps);
  size_t PickSwap();
  void Shift(Swap* swap);
  Swap MoveTo(const Swap& swap, const Option& other) const;
  // Pick an unused option that overlaps this one at some position; the probability is proportional
  // to its size.
  const Option* PickOverlapping(const Option& option);
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
