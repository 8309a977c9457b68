#ifndef TFSWAP_CC_CORE_UTIL_READABLE_BYTES_H_
#define TFSWAP_CC_CORE_UTIL_READABLE_BYTES_H_

#include <cstdint>
#include <string>

namespace tfswap {

// "1.50 GiB", "12.0 MiB", "7.5 KiB", "12 bytes": as people read them in texts.
std::string ReadableBytes(int64_t bytes);

// Likewise of an amount that is needed: rounded up.
std::string ReadableNeed(int64_t bytes);

}  // namespace tfswap

#endif  // TFSWAP_CC_CORE_UTIL_READABLE_BYTES_H_
