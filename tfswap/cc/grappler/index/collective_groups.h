#ifndef TFSWAP_CC_GRAPPLER_INDEX_COLLECTIVE_GROUPS_H_
#define TFSWAP_CC_GRAPPLER_INDEX_COLLECTIVE_GROUPS_H_

#include <vector>

#include "grappler/index/graph_index.h"

namespace tfswap {

// Return, by node, the first op of its collective group, or the node itself if it is not
// collective.
//
// A collective op waits for its peers on other devices although no edge shows this. A new edge that
// makes one op of a group wait for another one of the same group is a deadlock. The ops of a device
// are in the same order on all devices, so the i-th op of each device belongs to the i-th group:
//
//  CPU:0   ──▶ reduce ──▶ reduce_1 ──▶
//                ┊           ┊
//  CPU:1   ──▶ reduce_2 ──▶ reduce_3 ──▶
std::vector<int> CollectiveGroups(const GraphIndex& index);

}  // namespace tfswap

#endif  // TFSWAP_CC_GRAPPLER_INDEX_COLLECTIVE_GROUPS_H_
