#ifndef TFSWAP_CC_GRAPPLER_INDEX_COLLECTIVE_GROUPS_H_
#define TFSWAP_CC_GRAPPLER_INDEX_COLLECTIVE_GROUPS_H_

#include <vector>

#include "grappler/index/graph_index.h"

namespace tfswap {

// Collective ops wait for those of other devices, though no edge says so: where one of them is made
// to wait for another one of the same meeting, none of them ends.
//
//   CPU:0   ──▶ reduce ──▶ reduce_1 ──▶          by node: the first op of its meeting, itself if it
//                 ┊           ┊                  meets nobody. On each device a group's ops are in
//   CPU:1   ──▶ reduce_2 ──▶ reduce_3 ──▶        one order, and the first of all of them meet.
std::vector<int> CollectiveGroups(const GraphIndex& index);

}  // namespace tfswap

#endif  // TFSWAP_CC_GRAPPLER_INDEX_COLLECTIVE_GROUPS_H_
