#ifndef TFSWAP_CC_CORE_UTIL_ROUNDING_H_
#define TFSWAP_CC_CORE_UTIL_ROUNDING_H_

#include <cstdint>

namespace tfswap {

// Round to a multiple of `unit`; values must not be negative.
inline int64_t RoundUp(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }
inline int64_t RoundDown(int64_t value, int64_t unit) { return value / unit * unit; }

}  // namespace tfswap

#endif  // TFSWAP_CC_CORE_UTIL_ROUNDING_H_
