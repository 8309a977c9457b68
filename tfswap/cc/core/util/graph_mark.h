#ifndef TFSWAP_CC_CORE_UTIL_GRAPH_MARK_H_
#define TFSWAP_CC_CORE_UTIL_GRAPH_MARK_H_

namespace tfswap {

// The attribute by which the pass marks the nodes of the graphs that it has seen: the fingerprint.
// The device's allocator finds the layout by it, and recordings tell graphs apart.
inline constexpr char kGraphAttribute[] = "_tfswap_graph";

}  // namespace tfswap

#endif  // TFSWAP_CC_CORE_UTIL_GRAPH_MARK_H_
