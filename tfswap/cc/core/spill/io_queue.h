#ifndef TFSWAP_CC_CORE_SPILL_IO_QUEUE_H_
#define TFSWAP_CC_CORE_SPILL_IO_QUEUE_H_

#include <sys/uio.h>

#include <array>
#include <cstdint>
#include <memory>

namespace tfswap {

// A read or a write of one stretch of a file, from or into one or two blocks of memory.
struct IoRequest {
  bool write = false;
  int64_t offset = 0;
  std::array<iovec, 2> parts = {};
  int num_parts = 0;
};

// Several requests to one file in flight at once. A request is named by its slot, of which each has
// one in flight at most. Waiting sleeps. For one thread at a time, not always the same; nothing may
// be in flight when the queue goes. A forked process has neither the ring nor the threads: there it
// may only be forgotten.
class IoQueue {
 public:
  // Of 1 MiB each, 16 were no faster than 8 on the disk tried, and 2 were slower.
  static constexpr int kSlots = 8;

  struct Done {
    int slot = 0;
    int64_t result = 0;  // bytes, or -errno
  };

  // Null where the kernel, or who watches over this process, allows no io_uring.
  static std::unique_ptr<IoQueue> OfRing(int file);
  // The same from a thread a slot. Null where no thread can be started.
  static std::unique_ptr<IoQueue> OfThreads(int file);

  virtual ~IoQueue() = default;
  virtual const char* name() const = 0;
  virtual void Submit(int slot, const IoRequest& request) = 0;
  // The next that is done. At least one must be in flight.
  virtual Done Wait() = 0;
};

}  // namespace tfswap

#endif  // TFSWAP_CC_CORE_SPILL_IO_QUEUE_H_
