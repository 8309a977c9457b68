#ifndef TFSWAP_CC_CORE_SPILL_SPILL_LANES_H_
#define TFSWAP_CC_CORE_SPILL_SPILL_LANES_H_

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "core/spill/io_queue.h"

namespace tfswap {

// The maximum size of a disk request; each piece has a checksum.
constexpr int64_t kSpillPieceBytes = int64_t{1} << 20;

// The I/O queue and bounce buffers of one transfer, reused by later ones.
struct SpillLane {
  // Return null if neither io_uring, nor a thread, nor memory is available.
  static std::unique_ptr<SpillLane> Make(int file, bool io_uring);
  ~SpillLane();

  // A piece that begins and ends within a block needs a block more; untouched memory costs nothing.
  static constexpr int64_t kBounceBytes = 2 * kSpillPieceBytes;

  char* BounceOf(int slot) const { return bounce + slot * kBounceBytes; }

  std::unique_ptr<IoQueue> queue;
  char* bounce = nullptr;  // kBounceBytes per slot; touched only when needed
};

// The lanes of one file: one per concurrent transfer, up to a limit. Thread-safe.
class SpillLanes {
 public:
  SpillLanes(int file, bool io_uring, std::unique_ptr<SpillLane> first);

  // Return an idle or new lane; block at the limit.
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
