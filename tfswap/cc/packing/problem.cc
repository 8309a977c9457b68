#include "packing/problem.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

namespace tfswap::packing {

namespace {

// Call `piece(lower, upper)` for each interval in which the buffer is live.
template <typename Piece>
void ForEachPiece(const Buffer& buffer, Piece piece) {
  Time lower = buffer.lower;
  for (const Gap& gap : buffer.gaps) {
    if (gap.lower > lower) piece(lower, gap.lower);
    lower = gap.upper;
  }
  if (buffer.upper > lower) piece(lower, buffer.upper);
}

struct Event {
  Time time;
  bool begins;  // ends come first: the memory is free at that time
  int32_t buffer;
  bool operator<(const Event& other) const {
    return std::make_pair(time, begins) < std::make_pair(other.time, other.begins);
  }
};

std::vector<Event> Events(const Problem& problem) {
  std::vector<Event> events;
  for (size_t b = 0; b < problem.buffers.size(); ++b) {
    ForEachPiece(problem.buffers[b], [&](Time lower, Time upper) {
      events.push_back({lower, true, static_cast<int32_t>(b)});
      events.push_back({upper, false, static_cast<int32_t>(b)});
    });
  }
  std::stable_sort(events.begin(), events.end());
  return events;
}

void Require(bool holds, size_t buffer, const std::string& what) {
  if (!holds) throw std::invalid_argument("buffer " + std::to_string(buffer) + ": " + what);
}

}  // namespace

void Check(const Problem& problem) {
  int64_t sum = 0;
  for (size_t b = 0; b < problem.buffers.size(); ++b) {
    const Buffer& buffer = problem.buffers[b];
    Require(buffer.size >= 0, b, "its size is negative");
    Require(buffer.lower <= buffer.upper, b, "it ends before it begins");
    Require(buffer.alignment >= 1, b, "its alignment is below 1");
    Require(buffer.alignment <= int64_t{1} << 40, b, "its alignment is beyond 1 TiB");
    Require(buffer.size <= (int64_t{1} << 60) - sum, b, "the sizes add up to over 1 EiB");
    sum += buffer.size;
    if (buffer.fixed.has_value()) {
      Require(*buffer.fixed >= 0, b, "its fixed offset is negative");
      Require(*buffer.fixed <= int64_t{1} << 60, b, "its fixed offset is beyond 1 EiB");
      Require(*buffer.fixed % buffer.alignment == 0, b, "its fixed offset is not aligned");
    }
    Time last = buffer.lower;
    for (const Gap& gap : buffer.gaps) {
      Require(gap.lower < gap.upper, b, "a gap ends before it begins");
      Require(gap.lower >= last && gap.upper <= buffer.upper, b,
              "its gaps must be in order and within its lifetime");
      Require(gap.lower > last || last == buffer.lower, b, "two gaps touch");
      last = gap.upper;
    }
  }
  std::vector<size_t> fixed;
  for (size_t b = 0; b < problem.buffers.size(); ++b) {
    const Buffer& buffer = problem.buffers[b];
    if (!buffer.fixed.has_value()) continue;
    for (const size_t other_index : fixed) {
      const Buffer& other = problem.buffers[other_index];
      const bool share =
          *buffer.fixed < *other.fixed + other.size && *other.fixed < *buffer.fixed + buffer.size;
      Require(!share || !Overlap(buffer, other), b,
              "its fixed offset overlaps that of buffer " + std::to_string(other_index));
    }
    fixed.push_back(b);
  }
}

int64_t MaxLive(const Problem& problem) {
  int64_t live = 0;
  int64_t most = 0;
  for (const Event& event : Events(problem)) {
    const int64_t size = problem.buffers[event.buffer].size;
    live += event.begins ? size : -size;
    most = std::max(most, live);
  }
  return most;
}

bool Overlap(const Buffer& a, const Buffer& b) {
  bool found = false;
  ForEachPiece(a, [&](Time a_lower, Time a_upper) {
    ForEachPiece(b, [&](Time b_lower, Time b_upper) {
      found |= std::max(a_lower, b_lower) < std::min(a_upper, b_upper);
    });
  });
  return found;
}

std::vector<std::vector<int32_t>> Neighbours(const Problem& problem) {
  std::vector<std::vector<int32_t>> neighbours(problem.buffers.size());
  std::vector<int32_t> live;
  for (const Event& event : Events(problem)) {
    if (event.begins) {
      for (const int32_t other : live) {
        neighbours[other].push_back(event.buffer);
        neighbours[event.buffer].push_back(other);
      }
      live.push_back(event.buffer);
    } else {
      live.erase(std::find(live.begin(), live.end(), event.buffer));
    }
  }
  for (std::vector<int32_t>& of_one : neighbours) {
    std::sort(of_one.begin(), of_one.end());
    of_one.erase(std::unique(of_one.begin(), of_one.end()), of_one.end());
  }
  return neighbours;
}

int64_t Height(const Problem& problem, const std::vector<Offset>& offsets) {
  int64_t height = 0;
  for (size_t b = 0; b < offsets.size(); ++b) {
    height = std::max(height, offsets[b] + problem.buffers[b].size);
  }
  return height;
}

}  // namespace tfswap::packing
