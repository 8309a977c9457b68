#ifndef TFSWAP_CC_CORE_UTIL_GRAPH_MARK_H_
#define TFSWAP_CC_CORE_UTIL_GRAPH_MARK_H_

namespace tfswap {

// The attribute that holds a graph's fingerprint, set by the pass on all nodes. The device's
// allocator finds the memory layout by it, and recordings distinguish graphs.
inline constexpr char kGraphAttribute[] = "_tfswap_graph";

}  // namespace tfswap

#endif  // TFSWAP_CC_CORE_UTIL_GRAPH_MARK_H_
