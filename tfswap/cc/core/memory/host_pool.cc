#include "core/memory/host_pool.h"

#include <sys/mman.h>

#include <algorithm>

#include "core/util/faults.h"
#include "core/util/readable_bytes.h"

namespace tfswap {

namespace {

constexpr int64_t kPageBytes = 4096;

int64_t RoundToPages(int64_t bytes) {
  return std::max<int64_t>(kPageBytes, (bytes + kPageBytes - 1) / kPageBytes * kPageBytes);
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

HostPool::~HostPool() { Trim(); }

void* HostPool::Allocate(int64_t bytes) {
  if (Faults::Strikes(Fault::kHostFull)) return nullptr;
  const int64_t rounded = RoundToPages(bytes);
  std::lock_guard<std::mutex> lock(mu_);
  caching_ = true;
  void* block = nullptr;
  auto it = cached_.find(rounded);
  if (it != cached_.end() && !it->second.empty()) {
    block = it->second.front();
    it->second.pop_front();
  } else {
    block = IsSmall(rounded) ? Carve(rounded) : MapFromSystem(rounded);
    if (block == nullptr) return nullptr;
  }
  if (IsSmall(rounded)) ArenaOf(block)->used_bytes += rounded;
  stats_.bytes_cached -= rounded;
  stats_.bytes_in_use += rounded;
  stats_.peak_bytes_in_use = std::max(stats_.peak_bytes_in_use, stats_.bytes_in_use);
  return block;
}

void HostPool::Free(void* block, int64_t bytes) {
  if (block == nullptr) return;
  const int64_t rounded = RoundToPages(bytes);
  std::lock_guard<std::mutex> lock(mu_);
  stats_.bytes_in_use -= rounded;
  stats_.bytes_cached += rounded;
  cached_[rounded].push_back(block);
  if (IsSmall(rounded)) ArenaOf(block)->used_bytes -= rounded;
  if (!caching_) TrimLocked(stats_.bytes_cached);
}

void* HostPool::MapFromSystem(int64_t bytes) {
  stats_.refusal.clear();
  if (stats_.limit_bytes > 0) {
    const int64_t over = stats_.bytes_in_use + stats_.bytes_cached + bytes - stats_.limit_bytes;
    if (over > 0) TrimLocked(over);
    if (stats_.bytes_in_use + stats_.bytes_cached + bytes > stats_.limit_bytes) return nullptr;
  }
  void* begin = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (begin == MAP_FAILED) return nullptr;
  // Fewer page faults on the first write; advice only.
  madvise(begin, bytes, MADV_HUGEPAGE);
  if (hooks_.taken) {
    stats_.refusal = hooks_.taken(begin, bytes);
    if (!stats_.refusal.empty()) {
      munmap(begin, bytes);
      return nullptr;
    }
  }
  stats_.bytes_cached += bytes;
  return begin;
}

void HostPool::Release(void* begin, int64_t bytes) {
  if (hooks_.released) hooks_.released(begin, bytes);
  munmap(begin, bytes);
  stats_.bytes_cached -= bytes;
}

void* HostPool::Carve(int64_t rounded) {
  auto arena = std::find_if(arenas_.begin(), arenas_.end(), [&](const auto& each) {
    return each.second.bytes - each.second.carved_bytes >= rounded;
  });
  if (arena == arenas_.end()) {
    // Near the limit, use an arena that is just large enough.
    for (const int64_t bytes : {hooks_.arena_bytes, rounded}) {
      void* begin = MapFromSystem(bytes);
      if (begin == nullptr) continue;
      arena = arenas_.emplace(static_cast<char*>(begin), Arena{bytes}).first;
      break;
    }
    if (arena == arenas_.end()) return nullptr;
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
  Release(begin, bytes);
}

void HostPool::SetLimit(int64_t limit_bytes) {
  std::lock_guard<std::mutex> lock(mu_);
  stats_.limit_bytes = limit_bytes;
  if (limit_bytes > 0) TrimLocked(stats_.bytes_in_use + stats_.bytes_cached - limit_bytes);
}

void HostPool::Trim() {
  std::lock_guard<std::mutex> lock(mu_);
  caching_ = false;
  TrimLocked(stats_.bytes_cached);
}

void HostPool::TrimLocked(int64_t at_least_bytes) {
  const int64_t until = stats_.bytes_cached - at_least_bytes;
  for (auto size = cached_.rbegin(); size != cached_.rend() && !IsSmall(size->first); ++size) {
    while (stats_.bytes_cached > until && !size->second.empty()) {
      Release(size->second.back(), size->first);
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
