#ifndef TFSWAP_CC_CORE_SPILL_SPILL_TRANSFER_H_
#define TFSWAP_CC_CORE_SPILL_SPILL_TRANSFER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "core/spill/direct_file.h"
#include "core/spill/spill_lanes.h"

namespace tfswap {

// What is known of a piece in the file.
struct SpillPiece {
  int64_t bytes = 0;  // 0: not written
  uint64_t checksum = 0;
};

// Bytes on their way between memory and a file, piece by piece.
struct SpillTransfer {
  bool write = false;
  bool checksums = true;
  int64_t offset = 0;  // in the file, whole blocks
  char* data = nullptr;
  int64_t bytes = 0;
};

// Through the lane's slots, several pieces at once; nothing is in flight when it returns. Fills in
// the pieces' checksums, or compares them. The error, or none.
std::string RunTransfer(const SpillTransfer& transfer, const DirectFile& file, SpillLane* lane,
                        std::vector<SpillPiece>* pieces);

}  // namespace tfswap

#endif  // TFSWAP_CC_CORE_SPILL_SPILL_TRANSFER_H_
