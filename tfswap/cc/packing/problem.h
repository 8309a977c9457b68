// Dynamic storage allocation: which addresses buffers get whose lifetimes are known.
//
//   address
//     ^
//   6 |          +-----+
//     |   +------+  c  |        a is live in [0, 5), b in [1, 3), c in [3, 6).
//   4 |   |  b   |     |        a and b, and a and c, need room of their own; b and c may share.
//   2 +---+------+--+--+        The load is 6 in [3, 5): no packing is lower than that.
//     |      a      |
//   0 +---+---+--+--+--+--> time
//     0   1      3  5  6

#ifndef TFSWAP_CC_PACKING_PROBLEM_H_
#define TFSWAP_CC_PACKING_PROBLEM_H_

#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

namespace tfswap::packing {

using Time = int64_t;    // any clock: an event's number will do
using Offset = int64_t;  // a planned address, from the slab's begin

// A stretch of a lifetime [lower, upper) in which the buffer's addresses are anybody's.
struct Gap {
  Time lower = 0;
  Time upper = 0;
  bool operator==(const Gap& other) const { return lower == other.lower && upper == other.upper; }
};

// Live in [lower, upper) but for its gaps, which are in order and do not touch.
struct Buffer {
  int64_t size = 0;
  Time lower = 0;
  Time upper = 0;
  int64_t alignment = 1;        // its offset is a multiple
  std::optional<Offset> fixed;  // it must be there
  std::vector<Gap> gaps;
};

struct Problem {
  std::vector<Buffer> buffers;
};

struct Packing {
  std::vector<Offset> offsets;  // one a buffer
  int64_t height = 0;           // the end of the highest
};

// Throws std::invalid_argument, naming the buffer, if a problem makes no sense.
void Check(const Problem& problem);

// The largest sum of sizes that are live at once: no packing is lower.
int64_t MaxLive(const Problem& problem);

// Whether two buffers are ever live together.
bool Overlap(const Buffer& a, const Buffer& b);

// For each buffer the others that it must not share addresses with, ascending.
std::vector<std::vector<int32_t>> Neighbours(const Problem& problem);

// The end of the highest buffer.
int64_t Height(const Problem& problem, const std::vector<Offset>& offsets);

inline Offset AlignUp(Offset offset, int64_t alignment) {
  return alignment <= 1 ? offset : (offset + alignment - 1) / alignment * alignment;
}

}  // namespace tfswap::packing

#endif  // TFSWAP_CC_PACKING_PROBLEM_H_
