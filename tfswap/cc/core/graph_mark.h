#ifndef TFSWAP_CC_CORE_GRAPH_MARK_H_
#define TFSWAP_CC_CORE_GRAPH_MARK_H_

namespace tfswap {

// The attribute by which the pass marks the nodes of a graph that has a plan: its fingerprint. The
// device's allocator finds the layout by it.
inline constexpr char kGraphAttribute[] = "_tfswap_graph";

}  // namespace tfswap

#endif  // TFSWAP_CC_CORE_GRAPH_MARK_H_
