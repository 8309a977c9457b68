#ifndef TFSWAP_GRAPPLER_SECTIONS_H_
#define TFSWAP_GRAPPLER_SECTIONS_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "tensorflow/core/framework/graph.pb.h"
#include "tensorflow/core/grappler/grappler_item.h"

namespace tfswap {

// A graph of which a part works on sections of the batch.
struct Sectioned {
  tensorflow::GraphDef graph;  // empty if no op does
  int ops = 0;                 // of the given graph, that do
};

// Has the item's ops that compute each example by itself (section_rules.h) run on `count` equal
// sections of the batch, one after the other (tvDNN: Park et al., PPoPP 2018). What they make is
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
absl::StatusOr<Sectioned> CutIntoSections(const tensorflow::grappler::GrapplerItem& item,
                                          int64_t count);

}  // namespace tfswap

#endif  // TFSWAP_GRAPPLER_SECTIONS_H_
