#include "kernels/use_order.h"

#include <algorithm>
#include <iterator>

namespace tfswap {

namespace {

// Uses that are kept; more are those of several steps.
constexpr int64_t kMaxUses = 1 << 16;
// Threads run ops in slightly different orders from step to step.
constexpr int64_t kMaxSkipped = 8;

uint64_t PairOf(const void* previous, const void* key) {
  return reinterpret_cast<uintptr_t>(previous) * 0x9E3779B97F4A7C15u ^
         reinterpret_cast<uintptr_t>(key);
}

}  // namespace

void UseOrder::Add(Key key) {
  const Key previous = uses_.empty() ? nullptr : uses_.back();
  if (key == previous) return;
  if (static_cast<int64_t>(uses_.size()) >= kMaxUses) Forget();
  const auto end = static_cast<int64_t>(uses_.size());
  int64_t place = -1;
  if (cursor_ >= 0) {
    const auto from = uses_.begin() + cursor_ + 1;
    const auto to = from + std::min(kMaxSkipped, end - cursor_ - 1);
    const auto found = std::find(from, to, key);
    if (found != to) place = found - uses_.begin();
  }
  cursor_ = place >= 0 ? place : PlaceBefore(previous, key);
  place_[key] = place_of_pair_[PairOf(previous, key)] = end;
  uses_.push_back(key);
}

int64_t UseOrder::PlaceBefore(Key previous, Key key) const {
  const auto pair = place_of_pair_.find(PairOf(previous, key));
  if (pair != place_of_pair_.end() && uses_[pair->second] == key) return pair->second;
  const auto single = place_.find(key);
  return single == place_.end() ? -1 : single->second;
}

void UseOrder::Remove(Key key) {
  std::replace(uses_.begin(), uses_.end(), key, Key{nullptr});
  place_.erase(key);
}

void UseOrder::Clear() { *this = UseOrder(); }

void UseOrder::Forget() {
  const int64_t gone = kMaxUses / 2;
  uses_.erase(uses_.begin(), uses_.begin() + gone);
  const auto shift = [gone](auto* places) {
    for (auto at = places->begin(); at != places->end();) {
      at->second -= gone;
      at = at->second < 0 ? places->erase(at) : std::next(at);
    }
  };
  shift(&place_);
  shift(&place_of_pair_);
  cursor_ = std::max<int64_t>(cursor_ - gone, -1);
}

std::vector<UseOrder::Use> UseOrder::Next(int count) const {
  std::vector<Use> next;
  const auto end = static_cast<int64_t>(uses_.size());
  for (int64_t place = cursor_ + 1; cursor_ >= 0 && place < end; ++place) {
    if (static_cast<int>(next.size()) == count) break;
    const Key key = uses_[place];
    const auto is_same = [key](const Use& use) { return use.key == key; };
    if (key != nullptr && std::none_of(next.begin(), next.end(), is_same)) {
      next.push_back({key, place - cursor_});
    }
  }
  return next;
}

std::unordered_map<UseOrder::Key, int64_t> UseOrder::Distances() const {
  std::unordered_map<Key, int64_t> distances;
  if (cursor_ < 0) return distances;
  for (auto place = static_cast<int64_t>(uses_.size()) - 1; place > cursor_; --place) {
    distances[uses_[place]] = place - cursor_;
  }
  return distances;
}

}  // namespace tfswap
