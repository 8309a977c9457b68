// Dynamic storage allocation: assign addresses to buffers with known lifetimes.
//
//  address
//    ^
//  6 |          +-----+
//    |   +------+  c  |        a is live in [0, 5), b in [1, 3), c in [3, 6).
//  4 |   |  b   |     |        a conflicts with b and c; b and c may share addresses.
//  2 +---+------+--+--+        The load is 6 in [3, 5): no packing is lower than that.
//    |      a      |
//  0 +---+---+--+--+--+--> time
//    0   1      3  5  6

#ifndef TFSWAP_CC_PACKING_PROBLEM_H_
#define TFSWAP_CC_PACKING_PROBLEM_H_

#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

namespace tfswap::packing {

using Time = int64_t;    // any ascending clock, such as event numbers
using Offset = int64_t;  // a planned address, relative to the start of the slab

// An interval of a lifetime in which other buffers may use the buffer's addresses.
struct Gap {
  Time lower = 0;
  Time upper = 0;
  bool operator==(const Gap& other) const { return lower == other.lower && upper == other.upper; }
};

// Live in [lower, upper) except for its gaps, which are in order and do not touch.
struct Buffer {
  int64_t size = 0;
  Time lower = 0;
  Time upper = 0;
  int64_t alignment = 1;        // the offset is a multiple of it
  std::optional<Offset> fixed;  // a required offset
  std::vector<Gap> gaps;
};

struct Problem {
  std::vector<Buffer> buffers;
};

struct Packing {
  std::vector<Offset> offsets;  // by buffer
  int64_t height = 0;           // end of the highest buffer
};

// Throw std::invalid_argument, naming the buffer, if the problem is invalid.
void Check(const Problem& problem);

// Return the peak load, a lower bound on the height of any packing.
int64_t MaxLive(const Problem& problem);

// Return whether two buffers are ever live at the same time.
bool Overlap(const Buffer& a, const Buffer& b);

// Return, for each buffer, the buffers that are live at the same time, ascending.
std::vector<std::vector<int32_t>> Neighbours(const Problem& problem);

// Return the end of the highest buffer.
int64_t Height(const Problem& problem, const std::vector<Offset>& offsets);

inline Offset AlignUp(Offset offset, int64_t alignment) {
  return alignment <= 1 ? offset : (offset + alignment - 1) / alignment * alignment;
}

}  // namespace tfswap::packing

#endif  // TFSWAP_CC_PACKING_PROBLEM_H_
