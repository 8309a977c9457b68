#include "core/host_pool.h"

#include <sys/mman.h>

#include <algorithm>

namespace tfswap {

namespace {

constexpr int64_t kPageBytes = 4096;

int64_t RoundToPages(int64_t bytes) {
  return std::max<int64_t>(kPageBytes, (bytes + kPageBytes - 1) / kPageBytes * kPageBytes);
}

}  // namespace

HostPool::~HostPool() { Trim(); }

void* HostPool::Allocate(int64_t bytes) {
  const int64_t rounded = RoundToPages(bytes);
  std::lock_guard<std::mutex> lock(mu_);
  void* block = nullptr;
  auto it = kept_.find(rounded);
  if (it != kept_.end() && !it->second.empty()) {
    block = it->second.front();
    it->second.pop_front();
    stats_.bytes_cached -= rounded;
  } else {
    if (stats_.limit_bytes > 0) {
      const int64_t over = stats_.bytes_in_use + stats_.bytes_cached + rounded - stats_.limit_bytes;
      if (over > 0) TrimLocked(over);
      if (stats_.bytes_in_use + stats_.bytes_cached + rounded > stats_.limit_bytes) return nullptr;
    }
    block = mmap(nullptr, rounded, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (block == MAP_FAILED) return nullptr;
    // Fewer page faults the first time that the block is written; advice only.
    madvise(block, rounded, MADV_HUGEPAGE);
    if (hooks_.taken && !hooks_.taken(block, rounded)) {
      munmap(block, rounded);
      return nullptr;
    }
  }
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
  kept_[rounded].push_back(block);
}

void HostPool::SetLimit(int64_t limit_bytes) {
  std::lock_guard<std::mutex> lock(mu_);
  stats_.limit_bytes = limit_bytes;
  if (limit_bytes > 0) TrimLocked(stats_.bytes_in_use + stats_.bytes_cached - limit_bytes);
}

void HostPool::Trim() {
  std::lock_guard<std::mutex> lock(mu_);
  TrimLocked(stats_.bytes_cached);
}

void HostPool::TrimLocked(int64_t at_least_bytes) {
  while (at_least_bytes > 0 && !kept_.empty()) {
    auto largest = std::prev(kept_.end());
    if (largest->second.empty()) {
      kept_.erase(largest);
      continue;
    }
    if (hooks_.released) hooks_.released(largest->second.back(), largest->first);
    munmap(largest->second.back(), largest->first);
    largest->second.pop_back();
    stats_.bytes_cached -= largest->first;
    at_least_bytes -= largest->first;
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
