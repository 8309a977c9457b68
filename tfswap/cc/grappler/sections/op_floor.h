#ifndef TFSWAP_CC_GRAPPLER_SECTIONS_OP_FLOOR_H_
#define TFSWAP_CC_GRAPPLER_SECTIONS_OP_FLOOR_H_

#include <cstdint>
#include <string>

#include "grappler/index/inferred_graph.h"
#include "grappler/sections/section_plan.h"

namespace tfswap {

// The op that has most memory to itself.
struct OpFloor {
  int64_t bytes = 0;
  std::string op;
};

// What no swap gets below: the most that one op reads and makes at once, in the managed device's
// memory. A buffer counts once, whatever aliases of it there are; what an op makes in the place of
// what it alone reads counts once too. Of an op that works on sections, one section's copy counts.
// Left out is what is there anyway (variables, the function's arguments, constants), workspaces,
// and tensors of unknown shape.
OpFloor FloorOf(const InferredGraph& graph, const SectionPlan& plan);

}  // namespace tfswap

#endif  // TFSWAP_CC_GRAPPLER_SECTIONS_OP_FLOOR_H_
