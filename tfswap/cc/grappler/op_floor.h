#ifndef TFSWAP_GRAPPLER_OP_FLOOR_H_
#define TFSWAP_GRAPPLER_OP_FLOOR_H_

#include <cstdint>
#include <string>

#include "grappler/graph_index.h"
#include "tensorflow/core/grappler/costs/graph_properties.h"

namespace tfswap {

// The op that has most memory to itself.
struct OpFloor {
  int64_t bytes = 0;
  std::string op;
};

// What no swap gets below: the most that one op reads and makes at once, in the managed device's
// memory. A buffer counts once, whatever aliases of it there are; what an op makes in the place of
// what it alone reads counts once too. Left out is what is there anyway (variables, the function's
// arguments, constants), workspaces, and tensors of unknown shape.
OpFloor FloorOf(const GraphIndex& index,
                const tensorflow::grappler::GraphProperties& inferred_properties);

}  // namespace tfswap

#endif  // TFSWAP_GRAPPLER_OP_FLOOR_H_
