#include "fuzz_coverage.h"

#include <cstdint>
#include <cstring>

namespace {

constexpr size_t kPlaces = size_t{1} << 16;
uint8_t counts[kPlaces];
uint8_t known[kPlaces];
uintptr_t before;

// 1, 2, 3, 4 to 7, 8 to 31, ... times: a bit for each.
uint8_t Often(uint8_t count) {
  if (count <= 3) return static_cast<uint8_t>(1 << count >> 1);
  return count < 8 ? 8 : count < 32 ? 16 : count < 128 ? 32 : 64;
}

}  // namespace

// Called by instrumented code, wherever it may have branched.
extern "C" void __sanitizer_cov_trace_pc() {
  const auto place = reinterpret_cast<uintptr_t>(__builtin_return_address(0));
  uint8_t& count = counts[(place ^ before) % kPlaces];
  if (count < 255) ++count;
  before = place >> 1;
}

namespace tfswap {

void FuzzCoverage::Begin() {
  std::memset(counts, 0, sizeof(counts));
  before = 0;
}

bool FuzzCoverage::End() {
  bool is_new = false;
  for (size_t place = 0; place < kPlaces; ++place) {
    if (counts[place] == 0) continue;
    const uint8_t often = Often(counts[place]);
    if ((known[place] & often) != 0) continue;
    edges_ += known[place] == 0;
    known[place] |= often;
    is_new = true;
  }
  return is_new;
}

}  // namespace tfswap
