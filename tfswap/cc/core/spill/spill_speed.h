#ifndef TFSWAP_CC_CORE_SPILL_SPILL_SPEED_H_
#define TFSWAP_CC_CORE_SPILL_SPILL_SPEED_H_

#include <cstdint>
#include <string>

#include "core/spill/spill_file.h"

namespace tfswap {

struct SpillSpeed {
  double write_bytes_per_s = 0;
  double read_bytes_per_s = 0;
  // While the other direction is saturated.
  double both_write_bytes_per_s = 0;
  double both_read_bytes_per_s = 0;
};

// Measure a temporary spill file of at most `bytes` bytes in `folder`. Takes about `seconds`, or
// longer if a single write of 8 MiB does. Return an error message or "".
std::string MeasureSpill(const std::string& folder, int64_t bytes, double seconds,
                         SpillSpeed* speed, const SpillOptions& options = {});

}  // namespace tfswap

#endif  // TFSWAP_CC_CORE_SPILL_SPILL_SPEED_H_
