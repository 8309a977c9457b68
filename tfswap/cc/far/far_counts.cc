#include "far/far_counts.h"

#include <algorithm>

namespace tfswap {

void FarCounts::AddOut(FarTier tier, int64_t bytes, int64_t held_bytes, int64_t busy_ns) {
  std::lock_guard<std::mutex> lock(mu_);
  FarTierStats& stats = this->tier(tier);
  ++stats.copies_out;
  stats.bytes_out += bytes;
  stats.busy_out_ns += busy_ns;
  stats.bytes_in_use += held_bytes;
  stats.peak_bytes = std::max(stats.peak_bytes, stats.bytes_in_use);
}

void FarCounts::AddFarBytes(FarTier tier, int64_t far_bytes) {
  std::lock_guard<std::mutex> lock(mu_);
  this->tier(tier).far_bytes_out += far_bytes;
}

void FarCounts::AddIn(FarTier tier, int64_t bytes, int64_t busy_ns) {
  std::lock_guard<std::mutex> lock(mu_);
  this->tier(tier).bytes_in += bytes;
  this->tier(tier).busy_in_ns += busy_ns;
}

void FarCounts::AddDrop(FarTier tier, int64_t held_bytes) {
  std::lock_guard<std::mutex> lock(mu_);
  this->tier(tier).bytes_in_use -= held_bytes;
}

void FarCounts::AddFallback() {
  std::lock_guard<std::mutex> lock(mu_);
  ++stats_.moved_on;
}

void FarCounts::AddError() {
  std::lock_guard<std::mutex> lock(mu_);
  ++stats_.io_errors;
}

FarStats FarCounts::Stats() const {
  std::lock_guard<std::mutex> lock(mu_);
  return stats_;
}

void FarCounts::Reset() {
  std::lock_guard<std::mutex> lock(mu_);
  FarStats fresh;
  for (int i = 0; i < kFarTiers; ++i) {
    fresh.tiers[i].bytes_in_use = fresh.tiers[i].peak_bytes = stats_.tiers[i].bytes_in_use;
  }
  stats_ = fresh;
}

}  // namespace tfswap
