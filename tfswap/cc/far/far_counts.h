#ifndef TFSWAP_CC_FAR_FAR_COUNTS_H_
#define TFSWAP_CC_FAR_FAR_COUNTS_H_

#include <array>
#include <cstdint>
#include <mutex>

namespace tfswap {

// The tiers of far memory, nearest first.
enum class FarTier : uint8_t { kHost, kCompressed, kFile };
constexpr int kFarTiers = 3;

// Bytes since the last reset, and buffers that are there now.
struct FarTierStats {
  int64_t bytes_out = 0;      // as on the device
  int64_t far_bytes_out = 0;  // as kept
  int64_t copies_out = 0;
  int64_t busy_out_ns = 0;
  int64_t bytes_in = 0;
  int64_t busy_in_ns = 0;
  int64_t bytes_in_use = 0;  // that are taken for them
  int64_t peak_bytes = 0;    // of those
};

struct FarStats {
  std::array<FarTierStats, kFarTiers> tiers;
  int64_t moved_on = 0;   // buffers that were not kept in the tier that they were meant for
  int64_t io_errors = 0;  // writes that failed; what was to be written stayed in memory
};

// Counts what goes through far memory, whoever moves it. Thread-safe.
class FarCounts {
 public:
  // A buffer of `bytes` left; `held_bytes` are taken for it until it is dropped.
  void Out(FarTier tier, int64_t bytes, int64_t held_bytes, int64_t busy_ns);
  // What became of one that left: at once, or when that is known.
  void Kept(FarTier tier, int64_t far_bytes);
  void In(FarTier tier, int64_t bytes, int64_t busy_ns);
  void Dropped(FarTier tier, int64_t held_bytes);
  void MovedOn();
  void Failed();

  FarStats Stats() const;
  void Reset();

 private:
  FarTierStats& tier(FarTier tier) { return stats_.tiers[static_cast<int>(tier)]; }

  mutable std::mutex mu_;
  FarStats stats_;
};

}  // namespace tfswap

#endif  // TFSWAP_CC_FAR_FAR_COUNTS_H_
