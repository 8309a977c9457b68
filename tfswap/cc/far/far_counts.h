#ifndef TFSWAP_CC_FAR_FAR_COUNTS_H_
#define TFSWAP_CC_FAR_FAR_COUNTS_H_

#include <array>
#include <cstdint>
#include <mutex>

namespace tfswap {

// The tiers of far memory, fastest first.
enum class FarTier : uint8_t { kHost, kCompressed, kFile };
constexpr int kFarTiers = 3;

// Totals since the last reset, and the current use.
struct FarTierStats {
  int64_t bytes_out = 0;      // size on the device
  int64_t far_bytes_out = 0;  // size in far memory
  int64_t copies_out = 0;
  int64_t busy_out_ns = 0;
  int64_t bytes_in = 0;
  int64_t busy_in_ns = 0;
  int64_t bytes_in_use = 0;  // allocated now
  int64_t peak_bytes = 0;    // peak of bytes_in_use
};

struct FarStats {
  std::array<FarTierStats, kFarTiers> tiers;
  int64_t moved_on = 0;   // buffers stored in a different tier than requested
  int64_t io_errors = 0;  // failed writes; the data stayed in memory
};

// Counts the traffic of far memory. Thread-safe.
class FarCounts {
 public:
  // A buffer of `bytes` was copied out and occupies `held_bytes` until it is dropped.
  void AddOut(FarTier tier, int64_t bytes, int64_t held_bytes, int64_t busy_ns);
  // The final size of a copied-out buffer; with AddOut(), or later when it is known.
  void AddFarBytes(FarTier tier, int64_t far_bytes);
  void AddIn(FarTier tier, int64_t bytes, int64_t busy_ns);
  void AddDrop(FarTier tier, int64_t held_bytes);
  void AddFallback();
  void AddError();

  FarStats Stats() const;
  void Reset();

 private:
  FarTierStats& tier(FarTier tier) { return stats_.tiers[static_cast<int>(tier)]; }

  mutable std::mutex mu_;
  FarStats stats_;
};

}  // namespace tfswap

#endif  // TFSWAP_CC_FAR_FAR_COUNTS_H_
