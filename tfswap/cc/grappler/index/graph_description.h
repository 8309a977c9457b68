#ifndef TFSWAP_CC_GRAPPLER_INDEX_GRAPH_DESCRIPTION_H_
#define TFSWAP_CC_GRAPPLER_INDEX_GRAPH_DESCRIPTION_H_

#include <string>

#include "grappler/index/graph_index.h"

namespace tfswap {

// Return the graph as lines of tab-separated fields for the Python planners:
//  name  op  context  flags  plain  input...
// flags: g gateable, a alias, p swappable producer, r rewirable, s racing, o orderable, u update, b
// backward, d repeatable; g, p, o and d as if nothing raced. plain: one digit per output; 0 if the
// type is not plain bytes, 2 for an activation, else 1. An input is "node:port" or "^node". Each of
// two fused ops has a line "#twin  a  b". The pass adds the edges of order_edges.h as lines such as
// "#delay  before  after", and those of RacingTriggers as "#trigger  trigger  reader".
std::string Describe(const GraphIndex& index);

}  // namespace tfswap

#endif  // TFSWAP_CC_GRAPPLER_INDEX_GRAPH_DESCRIPTION_H_
