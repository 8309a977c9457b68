#ifndef TFSWAP_CC_CORE_SPILL_SPILL_LANES_H_
#define TFSWAP_CC_CORE_SPILL_SPILL_LANES_H_

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "core/spill/io_queue.h"

namespace tfswap {

// A request for the disk at most; each has a checksum.
constexpr int64_t kSpillPieceBytes = int64_t{1} << 20;

// What one call of a SpillFile's needs for itself, kept for the next one.
struct SpillLane {
  // Null where there is neither a ring nor a thread, or no memory.
  static std::unique_ptr<SpillLane> Make(int file, bool io_uring);
  ~SpillLane();

  char* BounceOf(int slot) const { return bounce + slot * kSpillPieceBytes; }

  std::unique_ptr<IoQueue> queue;
  char* bounce = nullptr;  // a piece for each slot; touched only where needed
};

// The lanes of one file: as many as there are calls at once, up to a few. Thread-safe.
class SpillLanes {
 public:
  SpillLanes(int file, bool io_uring, std::unique_ptr<SpillLane> first);

  // Waits for an idle one if there are enough.
  std::unique_ptr<SpillLane> Take();
  void Release(std::unique_ptr<SpillLane> lane);

 private:
  const int file_;
  const bool io_uring_;
  std::mutex mu_;
  std::condition_variable one_is_idle_;
  std::vector<std::unique_ptr<SpillLane>> idle_;
  int count_ = 1;
};

}  // namespace tfswap

#endif  // TFSWAP_CC_CORE_SPILL_SPILL_LANES_H_
