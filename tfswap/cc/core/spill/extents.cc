#include "core/spill/extents.h"

namespace tfswap {

int64_t Extents::Take(int64_t bytes) {
  const auto found = by_bytes_.lower_bound({bytes, 0});
  if (found == by_bytes_.end()) return -1;
  const auto [free, offset] = *found;
  Drop(by_offset_.find(offset));
  if (free > bytes) Add(offset + bytes, free - bytes);
  return offset;
}

void Extents::Release(int64_t offset, int64_t bytes) {
  auto next = by_offset_.lower_bound(offset);
  if (next != by_offset_.begin()) {
    const auto previous = std::prev(next);
    if (previous->first + previous->second == offset) {
      offset = previous->first;
      bytes += previous->second;
      Drop(previous);
    }
  }
  if (next != by_offset_.end() && offset + bytes == next->first) {
    bytes += next->second;
    Drop(next);
  }
  Add(offset, bytes);
}

void Extents::Grow(int64_t bytes) {
  end_ += bytes;
  Release(end_ - bytes, bytes);
}

int64_t Extents::free_bytes_at_end() const {
  if (by_offset_.empty()) return 0;
  const auto& [offset, bytes] = *by_offset_.rbegin();
  return offset + bytes == end_ ? bytes : 0;
}

void Extents::Add(int64_t offset, int64_t bytes) {
  by_offset_.emplace(offset, bytes);
  by_bytes_.emplace(bytes, offset);
  free_bytes_ += bytes;
}

void Extents::Drop(ByOffset::iterator stretch) {
  free_bytes_ -= stretch->second;
  by_bytes_.erase({stretch->second, stretch->first});
  by_offset_.erase(stretch);
}

}  // namespace tfswap
