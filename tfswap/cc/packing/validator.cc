#include "packing/validator.h"

namespace tfswap::packing {

namespace {

bool IsLive(const Buffer& buffer, Time time) {
  if (time < buffer.lower || time >= buffer.upper) return false;
  for (const Gap& gap : buffer.gaps) {
    if (time >= gap.lower && time < gap.upper) return false;
  }
  return true;
}

// If two buffers are live together, they are so when one of them becomes live.
bool LiveTogether(const Buffer& a, const Buffer& b) {
  for (const Buffer* buffer : {&a, &b}) {
    if (IsLive(a, buffer->lower) && IsLive(b, buffer->lower)) return true;
    for (const Gap& gap : buffer->gaps) {
      if (IsLive(a, gap.upper) && IsLive(b, gap.upper)) return true;
    }
  }
  return false;
}

}  // namespace

std::string FindFault(const Problem& problem, const Packing& packing) {
  const size_t count = problem.buffers.size();
  if (packing.offsets.size() != count) {
    return std::to_string(packing.offsets.size()) + " offsets for " + std::to_string(count) +
           " buffers";
  }
  for (size_t i = 0; i < count; ++i) {
    const Buffer& a = problem.buffers[i];
    const Offset offset = packing.offsets[i];
    const std::string name = "buffer " + std::to_string(i) + " at " + std::to_string(offset);
    if (offset < 0) return name + " is below the slab";
    if (offset % a.alignment != 0) return name + " is not aligned";
    if (a.fixed.has_value() && offset != *a.fixed) return name + " is not where it must be";
    if (offset + a.size > packing.height) return name + " ends above the height";
    for (size_t j = i + 1; j < count; ++j) {
      const Buffer& b = problem.buffers[j];
      const Offset other = packing.offsets[j];
      const bool share = offset < other + b.size && other < offset + a.size;
      if (share && LiveTogether(a, b)) {
        return name + " overlaps buffer " + std::to_string(j) + " at " + std::to_string(other);
      }
    }
  }
  return "";
}

}  // namespace tfswap::packing
