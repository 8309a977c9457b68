#ifndef TFSWAP_CC_CORE_UTIL_READABLE_BYTES_H_
#define TFSWAP_CC_CORE_UTIL_READABLE_BYTES_H_

#include <cstdint>
#include <string>

namespace tfswap {

// Return bytes in readable form: "1.50 GiB", "12.0 MiB", "7.5 KiB", "12 bytes".
std::string ReadableBytes(int64_t bytes);

// Return a required amount in readable form, rounded up.
std::string ReadableNeed(int64_t bytes);

}  // namespace tfswap

#endif  // TFSWAP_CC_CORE_UTIL_READABLE_BYTES_H_
