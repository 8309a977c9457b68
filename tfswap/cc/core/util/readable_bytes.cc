#include "core/util/readable_bytes.h"

#include <cstdio>

namespace tfswap {

std::string ReadableBytes(int64_t bytes) {
  char text[48];
  if (bytes >= int64_t{1} << 30) {
    std::snprintf(text, sizeof(text), "%.2f GiB", static_cast<double>(bytes) / (1 << 30));
  } else if (bytes >= 1 << 20) {
    std::snprintf(text, sizeof(text), "%.1f MiB", static_cast<double>(bytes) / (1 << 20));
  } else if (bytes >= 1 << 10) {
    std::snprintf(text, sizeof(text), "%.1f KiB", static_cast<double>(bytes) / (1 << 10));
  } else {
    std::snprintf(text, sizeof(text), "%lld bytes", static_cast<long long>(bytes));
  }
  return text;
}

std::string ReadableNeed(int64_t bytes) {
  // Half of the last printed digit.
  const int64_t half = bytes >= int64_t{1} << 30 ? (1 << 30) / 200
                       : bytes >= 1 << 20        ? (1 << 20) / 20
                       : bytes >= 1 << 10        ? (1 << 10) / 20
                                                 : 0;
  return ReadableBytes(bytes + half);
}

}  // namespace tfswap
