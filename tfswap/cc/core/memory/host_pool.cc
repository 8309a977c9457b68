#include "core/memory/host_pool.h"

#include <algorithm>

#include "core/memory/page_blocks.h"
#include "core/util/faults.h"
#include "core/util/readable_bytes.h"

namespace tfswap {

namespace {

constexpr int64_t kPageBytes = 4096;
constexpr int64_t kSmallUnitBytes = 1024;  // of blocks below a page, in arenas

int64_t Rounded(int64_t bytes) {
  const int64_t unit = bytes < kPageBytes ? kSmallUnitBytes : kPageBytes;
  return std::max(unit, (bytes + unit - 1) / unit * unit);
}

}  // namespace

std::string WhyFull(const HostPoolStats& stats, int64_t missing_bytes) {
  if (!stats.refusal.empty()) {
    return "Nothing more could be moved to host memory, of which " +
           ReadableBytes(stats.bytes_in_use) + " are in use: " + stats.refusal;
  }
  return "Far memory is full (" + ReadableBytes(stats.bytes_in_use) + " of host_limit " +
         ReadableBytes(stats.limit_bytes) +
         "), so nothing more could be moved: raise host_limit to " +
         ReadableNeed(std::max(stats.limit_bytes, stats.bytes_in_use + missing_bytes)) + " or more";
}

HostPool::Source HostPool::System(int64_t arena_bytes) {
  return {[](int64_t bytes) {
            return Source::Taken{AllocatePageBlock(static_cast<size_t>(bytes)), ""};
          },
          [](void* begin, int64_t bytes) { FreePageBlock(begin, static_cast<size_t>(bytes)); },
          arena_bytes};
}

HostPool::~HostPool() { Trim(); }

void* HostPool::Allocate(int64_t bytes) {
  if (Faults::Strikes(Fault::kHostFull)) return nullptr;
  const int64_t rounded = Rounded(bytes);
  Lock lock(mu_);
  caching_ = true;
  void* block = nullptr;
  auto it = cached_.find(rounded);
  if (it != cached_.end() && !it->second.empty()) {
    block = it->second.front();
    it->second.pop_front();
  } else {
    block = IsSmall(rounded) ? Carve(&lock, rounded) : Take(&lock, rounded);
    if (block == nullptr) return nullptr;
  }
  if (IsSmall(rounded)) ArenaOf(block)->used_bytes += rounded;
  stats_.bytes_cached -= rounded;
  stats_.bytes_in_use += rounded;
  stats_.peak_bytes_in_use = std::max(stats_.peak_bytes_in_use, stats_.bytes_in_use);
  return block;
}

void HostPool::Prepare(const std::vector<int64_t>& sizes) {
  std::map<int64_t, int64_t> large;  // blocks, by rounded size
  int64_t small_bytes = 0;
  for (const int64_t bytes : sizes) {
    const int64_t rounded = Rounded(bytes);
    if (IsSmall(rounded)) {
      small_bytes += rounded;
    } else {
      ++large[rounded];
    }
  }
  Lock lock(mu_);
  caching_ = true;
  // Taking more than fits would give back what was prepared before.
  const auto fits = [this](int64_t bytes) { return OverLimitBytes(bytes) <= 0; };
  for (const auto& [rounded, count] : large) {
    while (static_cast<int64_t>(cached_[rounded].size()) < count) {
      void* block = fits(rounded) ? Take(&lock, rounded) : nullptr;
      if (block == nullptr) return;
      cached_[rounded].push_back(block);
    }
  }
  for (const auto& [begin, arena] : arenas_) small_bytes -= arena.bytes - arena.used_bytes;
  for (; small_bytes > 0; small_bytes -= source_.arena_bytes) {
    if (!fits(source_.arena_bytes) || !TakeArena(&lock, source_.arena_bytes)) return;
  }
}

void HostPool::Free(void* block, int64_t bytes) {
  if (block == nullptr) return;
  const int64_t rounded = Rounded(bytes);
  std::lock_guard<std::mutex> lock(mu_);
  stats_.bytes_in_use -= rounded;
  stats_.bytes_cached += rounded;
  cached_[rounded].push_back(block);
  if (IsSmall(rounded)) ArenaOf(block)->used_bytes -= rounded;
  if (!caching_) TrimLocked(stats_.bytes_cached);
}

void* HostPool::Take(Lock* lock, int64_t bytes) {
  stats_.refusal.clear();
  TrimLocked(OverLimitBytes(bytes));
  if (OverLimitBytes(bytes) > 0) return nullptr;
  stats_.bytes_cached += bytes;  // keeps other threads within the limit
  lock->unlock();
  Source::Taken taken = source_.take(bytes);
  lock->lock();
  if (taken.begin == nullptr) {
    stats_.bytes_cached -= bytes;
    stats_.refusal = std::move(taken.refusal);
  }
  return taken.begin;
}

void HostPool::GiveBack(void* begin, int64_t bytes) {
  source_.give_back(begin, bytes);
  stats_.bytes_cached -= bytes;
}

bool HostPool::TakeArena(Lock* lock, int64_t bytes) {
  void* begin = Take(lock, bytes);
  if (begin != nullptr) arenas_[static_cast<char*>(begin)] = Arena{bytes};
  return begin != nullptr;
}

void* HostPool::Carve(Lock* lock, int64_t rounded) {
  const auto find = [&] {
    return std::find_if(arenas_.begin(), arenas_.end(), [&](const auto& each) {
      return each.second.bytes - each.second.carved_bytes >= rounded;
    });
  };
  auto arena = find();
  while (arena == arenas_.end()) {  // other threads may use up what this one has taken
    // Near the limit, use an arena that is just large enough.
    if (!TakeArena(lock, source_.arena_bytes) && !TakeArena(lock, rounded)) return nullptr;
    arena = find();
  }
  char* block = arena->first + arena->second.carved_bytes;
  arena->second.carved_bytes += rounded;
  return block;
}

HostPool::Arena* HostPool::ArenaOf(const void* block) {
  return &std::prev(arenas_.upper_bound(static_cast<char*>(const_cast<void*>(block))))->second;
}

void HostPool::DropIdleArena(const std::map<char*, Arena>::iterator& arena) {
  char* begin = arena->first;
  const int64_t bytes = arena->second.bytes;
  for (auto& [size, blocks] : cached_) {
    blocks.erase(
        std::remove_if(blocks.begin(), blocks.end(),
                       [&](void* block) { return block >= begin && block < begin + bytes; }),
        blocks.end());
  }
  arenas_.erase(arena);
  GiveBack(begin, bytes);
}

void HostPool::SetLimit(int64_t limit_bytes) {
  std::lock_guard<std::mutex> lock(mu_);
  stats_.limit_bytes = limit_bytes;
  TrimLocked(OverLimitBytes(0));
}

void HostPool::Trim() {
  std::lock_guard<std::mutex> lock(mu_);
  caching_ = false;
  TrimLocked(stats_.bytes_cached);
}

int64_t HostPool::OverLimitBytes(int64_t more_bytes) const {
  if (stats_.limit_bytes <= 0) return 0;
  return stats_.bytes_in_use + stats_.bytes_cached + more_bytes - stats_.limit_bytes;
}

void HostPool::TrimLocked(int64_t at_least_bytes) {
  if (at_least_bytes <= 0) return;
  const int64_t until = stats_.bytes_cached - at_least_bytes;
  for (auto size = cached_.rbegin(); size != cached_.rend() && !IsSmall(size->first); ++size) {
    while (stats_.bytes_cached > until && !size->second.empty()) {
      GiveBack(size->second.back(), size->first);
      size->second.pop_back();
    }
  }
  for (auto arena = arenas_.begin(); arena != arenas_.end() && stats_.bytes_cached > until;) {
    const auto next = std::next(arena);
    if (arena->second.used_bytes == 0) DropIdleArena(arena);
    arena = next;
  }
}

HostPoolStats HostPool::Stats() const {
  std::lock_guard<std::mutex> lock(mu_);
  return stats_;
}

void HostPool::ResetPeak() {
  std::lock_guard<std::mutex> lock(mu_);
  stats_.peak_bytes_in_use = stats_.bytes_in_use;
}

}  // namespace tfswap
