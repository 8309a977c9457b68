#ifndef TFSWAP_CC_CORE_SPILL_IO_QUEUE_H_
#define TFSWAP_CC_CORE_SPILL_IO_QUEUE_H_

#include <sys/uio.h>

#include <array>
#include <cstdint>
#include <memory>

namespace tfswap {

// A read or write of one range of a file, from or into one or two blocks of memory.
struct IoRequest {
  bool write = false;
  int64_t offset = 0;
  std::array<iovec, 2> parts = {};
  int num_parts = 0;
};

// Several concurrent requests to one file. A request is identified by its slot; each slot has at
// most one request in flight. Waiting blocks without spinning. One thread at a time may use the
// queue, not always the same one; no request may be in flight when it is destroyed. A forked
// process has neither the ring nor the threads: it must leak the queue.
class IoQueue {
 public:
  // With 1 MiB each, 16 were no faster than 8 on the tested disk, and 2 were slower.
  static constexpr int kSlots = 8;

  struct Done {
    int slot = 0;
    int64_t result = 0;  // bytes, or -errno
  };

  // Return a queue on io_uring; null if the kernel or a sandbox does not allow it.
  static std::unique_ptr<IoQueue> CreateRing(int file);
  // Return a queue on one thread per slot; null if no thread can be started.
  static std::unique_ptr<IoQueue> CreateThreads(int file);

  virtual ~IoQueue() = default;
  virtual const char* name() const = 0;
  virtual void Submit(int slot, const IoRequest& request) = 0;
  // Wait for the next completed request. At least one must be in flight.
  virtual Done Wait() = 0;
};

}  // namespace tfswap

#endif  // TFSWAP_CC_CORE_SPILL_IO_QUEUE_H_
