#ifndef TFSWAP_CC_GRAPPLER_SECTIONS_SECTION_PLAN_H_
#define TFSWAP_CC_GRAPPLER_SECTIONS_SECTION_PLAN_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "grappler/index/inferred_graph.h"
#include "grappler/sections/split_rule.h"

namespace tfswap {

// Which ops run on sections, how, and in which order.
struct SectionPlan {
  int64_t count = 1;
  int ops = 0;                                        // ops that run on sections
  std::vector<std::optional<SplitRule>> split_rules;  // by node; no value: as a whole
  std::vector<int> stage;                             // by node
  std::vector<int64_t> delay;                         // by node, in sections
  std::vector<int> order;                             // nodes, inputs first

  bool IsCut(int n) const { return ops > 0 && split_rules[n].has_value(); }
};

// Plan to run ops that treat examples independently (batch_rules.h) on `count` equal sections of
// the batch, one after the other (tvDNN: Park et al., PPoPP 2018). Their outputs never exist as a
// whole unless an op that mixes examples reads them:
//
//   x ─▶ conv ─▶ relu ─▶ ...            x ─┬─ part 0 ─▶ conv/section_0 ─▶ relu/section_0 ─▶ ...
//                                          │                                          └▶ NoOp
//                                          └─ part 1 ◀┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┘
//                                               └─▶ conv/section_1 ─▶ ...
//
// Ops are in stages: an op that reads the outputs of all sections of another op is one stage later.
// Within a stage a section starts when the previous one has ended, so a network whose examples are
// independent until the update runs forward and backward section by section. Sums over the batch
// are computed in the order of the sections, so their rounding differs from that without sections;
// all other results are the same bits.
//
// No op is split if the shapes do not show that `count` divides the batch.
SectionPlan PlanSections(const InferredGraph& graph, int64_t count);

}  // namespace tfswap

#endif  // TFSWAP_CC_GRAPPLER_SECTIONS_SECTION_PLAN_H_
