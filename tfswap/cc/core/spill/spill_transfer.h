#ifndef TFSWAP_CC_CORE_SPILL_SPILL_TRANSFER_H_
#define TFSWAP_CC_CORE_SPILL_SPILL_TRANSFER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "core/spill/direct_file.h"
#include "core/spill/spill_lanes.h"

namespace tfswap {

// The state of a piece in the file.
struct SpillPiece {
  int64_t bytes = 0;  // 0: not written
  uint64_t checksum = 0;
};

// A transfer between memory and the file, piece by piece.
struct SpillTransfer {
  bool write = false;
  bool checksums = true;
  int64_t offset = 0;  // in the file; whole blocks, except for reads of a checkpoint
  char* data = nullptr;
  int64_t bytes = 0;
};

// Run the transfer with several pieces in flight; none is when it returns. Set the checksums of the
// pieces, or verify them. Return an error message or "".
std::string RunTransfer(const SpillTransfer& transfer, const DirectFile& file, SpillLane* lane,
                        std::vector<SpillPiece>* pieces);

}  // namespace tfswap

#endif  // TFSWAP_CC_CORE_SPILL_SPILL_TRANSFER_H_
