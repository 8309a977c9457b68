#ifndef TFSWAP_CC_GRAPPLER_INDEX_GRAPH_DESCRIPTION_H_
#define TFSWAP_CC_GRAPPLER_INDEX_GRAPH_DESCRIPTION_H_

#include <string>

#include "grappler/index/graph_index.h"

namespace tfswap {

// The graph as lines of tab-separated fields, for Python's planners:
//   name  op  context  flags  plain  input...
// flags: g gateable, a alias, p swappable producer, r rewirable, s racing, o orderable, u update,
// b backward, d repeatable. plain: a digit an output, 0 where the type is not plain bytes, 2 for an
// activation. An input is "node:port" or "^node". A line "#twin  a  b" for each of two twins. The
// pass adds the order edges that bootstrap.h makes as lines "#delay  before  after" and
// "#keepup  before  after".
std::string Describe(const GraphIndex& index);

}  // namespace tfswap

#endif  // TFSWAP_CC_GRAPPLER_INDEX_GRAPH_DESCRIPTION_H_
