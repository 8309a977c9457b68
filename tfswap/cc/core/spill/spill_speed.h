#ifndef TFSWAP_CC_CORE_SPILL_SPILL_SPEED_H_
#define TFSWAP_CC_CORE_SPILL_SPILL_SPEED_H_

#include <cstdint>
#include <string>

#include "core/spill/spill_file.h"

namespace tfswap {

struct SpillSpeed {
  double write_bytes_per_s = 0;
  double read_bytes_per_s = 0;
  // While the other direction is as busy as it can be.
  double both_write_bytes_per_s = 0;
  double both_read_bytes_per_s = 0;
};

// Of a spill file of at most `bytes` bytes in `folder`, which is gone afterwards. Takes about
// `seconds`, longer where the disk is so slow that one write of 8 MiB takes as long. The problem,
// or none.
std::string MeasureSpill(const std::string& folder, int64_t bytes, double seconds,
                         SpillSpeed* speed, const SpillOptions& options = {});

}  // namespace tfswap

#endif  // TFSWAP_CC_CORE_SPILL_SPILL_SPEED_H_
