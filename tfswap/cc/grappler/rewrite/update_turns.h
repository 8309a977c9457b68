#ifndef TFSWAP_CC_GRAPPLER_REWRITE_UPDATE_TURNS_H_
#define TFSWAP_CC_GRAPPLER_REWRITE_UPDATE_TURNS_H_

#include "grappler/index/graph_index.h"
#include "grappler/rewrite/order_edges.h"

namespace tfswap {

// Return order edges that make variable updates take turns, in the order in which the backward part
// reaches their gradients. What belongs to a later turn waits: its reads of variables, its
// gradient, and the backward part of the layers before. So the values, optimizer state and
// temporaries of one variable are on the device at a time:
//
//   loss ─▶ dx3 ─▶ dx2 ─▶ dx1          dx3 ─▶ dw3 ─▶ update 3 ─▶ dx2 ─▶ dw2 ─▶ update 2 ─▶ ..
//            │      │      │     ──▶
//           dw3    dw2    dw1
//
// Before its update, a variable's value is used for the last time: a read that still holds it
// would make the update copy it.
//
// `late` is the index of the same nodes with further edges, which agree with those returned.
Edges UpdateTurns(const GraphIndex& index, const GraphIndex& late);

}  // namespace tfswap

#endif  // TFSWAP_CC_GRAPPLER_REWRITE_UPDATE_TURNS_H_
