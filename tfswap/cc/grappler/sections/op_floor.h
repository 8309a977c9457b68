#ifndef TFSWAP_CC_GRAPPLER_SECTIONS_OP_FLOOR_H_
#define TFSWAP_CC_GRAPPLER_SECTIONS_OP_FLOOR_H_

#include <cstdint>
#include <string>

#include "grappler/index/inferred_graph.h"
#include "grappler/sections/section_plan.h"

namespace tfswap {

// The op with the largest working set.
struct OpFloor {
  int64_t bytes = 0;
  std::string op;
};

// Return a lower bound on the peak that no swap can beat: the most bytes that one op reads and
// writes at once, in the memory of the managed device. A buffer counts once, whatever its aliases;
// so does an output that overwrites an input in place. Of an op that runs on sections, one
// section's copy counts. Not counted: variables, arguments and constants, workspaces, and tensors
// of unknown shape.
OpFloor FloorOf(const InferredGraph& graph, const SectionPlan& plan);

}  // namespace tfswap

#endif  // TFSWAP_CC_GRAPPLER_SECTIONS_OP_FLOOR_H_
