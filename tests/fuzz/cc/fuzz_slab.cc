// Requests planned addresses that overlap, are outside or have the wrong size from a slab, and
// checks that live blocks never share a byte.
//
//   fuzz_slab SEED CLAIMS

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <random>
#include <vector>

#include "core/memory/slab.h"

namespace tfswap {
namespace {

constexpr int64_t kCapacity = int64_t{1} << 30;
constexpr int64_t kMostLive = 300;

void Check(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "fuzz_slab: %s\n", what);
  std::abort();
}

// Pays while memory is left.
class Purse : public MemoryAccount {
 public:
  bool TryReserve(int64_t bytes) override {
    Check(bytes >= 0, "less than nothing is reserved");
    if (bytes > left_) return false;
    left_ -= bytes;
    return true;
  }
  void Release(int64_t bytes) override { left_ += bytes; }
  int64_t OverBudgetBytes() const override { return 0; }
  int64_t left() const { return left_; }

 private:
  int64_t left_ = int64_t{24} << 20;
};

class Claims {
 public:
  explicit Claims(uint64_t seed) : dice_(seed), slab_(kCapacity, &purse_) {}

  void Next() {
    const uint64_t what = dice_() % 16;
    if (live_.size() >= kMostLive || (what < 5 && !live_.empty())) return Release();
    if (what == 5) slab_.Decommit(Any({0, 1, 1 << 20, int64_t{1} << 62}));
    if (what == 6) slab_.SetLimit(Any({0, 1, 1 << 20, kCapacity, int64_t{1} << 50}));
    const int64_t bytes = Any({1, 1023, 1024, 1025, 4096, 65536, 65537, 1 << 20, 3 << 20, kCapacity,
                               kCapacity + 1, int64_t{1} << 50});
    const int64_t paid = dice_() % 4 == 0 ? Any({1, 1024, 65536, int64_t{1} << 50}) : 0;
    if (what >= 12) {
      const int64_t offset = slab_.ClaimUnplanned(bytes, paid);
      if (offset >= 0) Remember(offset, bytes);
    } else if (what == 11) {
      const int64_t offset = slab_.ClaimPaid(bytes);
      if (offset >= 0) Remember(offset, bytes);
    } else {
      const int64_t offset = Offset();
      if (slab_.Claim(offset, bytes, paid) == Slab::Claimed::kYes) Remember(offset, bytes);
    }
  }

  void End() {
    while (!live_.empty()) Release();
    slab_.Decommit(int64_t{1} << 62);
    Check(slab_.Stats().claimed_bytes == 0, "something is still claimed");
    Check(purse_.left() == int64_t{24} << 20, "somebody has not been paid back");
    Check(taken_ > 0, "nothing was claimed");
  }

 private:
  int64_t Any(const std::vector<int64_t>& of) { return of[dice_() % of.size()]; }

  int64_t Offset() {
    if (dice_() % 8 == 0) {
      return Any({-1024, -(int64_t{1} << 50), kCapacity - 1024, kCapacity, 2 * kCapacity - 1024,
                  2 * kCapacity, int64_t{1} << 50});
    }
    return static_cast<int64_t>(dice_() % 4096) * Slab::kGranuleBytes;
  }

  // A byte at each end of the live blocks.
  void Remember(int64_t offset, int64_t bytes) {
    ++taken_;
    Check(offset >= 0 && offset % Slab::kGranuleBytes == 0, "a place between granules");
    Check(bytes <= kCapacity && offset + bytes <= 2 * kCapacity, "a place outside of the slab");
    const auto above = live_.lower_bound(offset);
    Check(above == live_.end() || offset + bytes <= above->first, "two are in one place");
    Check(above == live_.begin() || std::prev(above)->second.end <= offset, "two are in one place");
    const auto mark = static_cast<char>(dice_());
    live_[offset] = {offset + bytes, mark};
    char* begin = slab_.At(offset);
    begin[0] = mark;
    if (const int64_t there = slab_.BytesOf(offset); there > 0) begin[there - 1] = mark;
  }

  void Release() {
    auto at = live_.begin();
    std::advance(at, dice_() % live_.size());
    const auto [offset, claim] = *at;
    const int64_t there = slab_.BytesOf(offset);
    Check(there >= 0 && offset + there <= claim.end, "a claim has grown");
    Check(slab_.At(offset)[0] == claim.mark, "somebody wrote to what is not theirs");
    if (there > 0) Check(slab_.At(offset)[there - 1] == claim.mark, "its end was written to");
    live_.erase(at);
    slab_.Release(offset);
  }

  struct Claim {
    int64_t end;
    char mark;
  };

  std::mt19937_64 dice_;
  Purse purse_;
  Slab slab_;
  std::map<int64_t, Claim> live_;
  int64_t taken_ = 0;
};

}  // namespace
}  // namespace tfswap

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  tfswap::Claims claims(std::strtoull(argv[1], nullptr, 10));
  for (long left = std::atol(argv[2]); left > 0; --left) claims.Next();
  claims.End();
  return 0;
}
