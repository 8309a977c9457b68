#ifndef TFSWAP_CC_GRAPPLER_SECTIONS_SECTION_PLAN_H_
#define TFSWAP_CC_GRAPPLER_SECTIONS_SECTION_PLAN_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "grappler/index/inferred_graph.h"
#include "grappler/sections/split_rule.h"

namespace tfswap {

// Which ops work on sections, how, and when.
struct SectionPlan {
  int64_t count = 1;
  int ops = 0;                                        // that work on sections
  std::vector<std::optional<SplitRule>> separations;  // by node; no value: as a whole
  std::vector<int> stage;                             // by node
  std::vector<int64_t> delay;                         // by node, in sections
  std::vector<int> order;                             // nodes, inputs first

  bool IsCut(int n) const { return ops > 0 && separations[n].has_value(); }
};

// Has ops that compute each example by itself (batch_rules.h) run on `count` equal sections of the
// batch, one after the other (tvDNN: Park et al., PPoPP 2018). What they make is
// never there as a whole, unless an op that mixes examples reads it:
//
//   x ─▶ conv ─▶ relu ─▶ ...            x ─┬─ part 0 ─▶ conv/section_0 ─▶ relu/section_0 ─▶ ...
//                                          │                                          └▶ NoOp
//                                          └─ part 1 ◀┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┘
//                                               └─▶ conv/section_1 ─▶ ...
//
// Ops are in stages: one more behind each op that reads what all sections of another one make. In a
// stage a section begins when the one before has ended: a net whose examples do not meet before the
// update runs forward and backward section by section. What is summed over the batch is summed in
// the sections' order, so it is rounded otherwise than without sections; all else is the same sums.
//
// No op does where shapes do not say that `count` divides the batch.
SectionPlan PlanSections(const InferredGraph& graph, int64_t count);

}  // namespace tfswap

#endif  // TFSWAP_CC_GRAPPLER_SECTIONS_SECTION_PLAN_H_
