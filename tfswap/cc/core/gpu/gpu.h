#ifndef TFSWAP_CC_CORE_GPU_GPU_H_
#define TFSWAP_CC_CORE_GPU_GPU_H_

#include <cstdint>

namespace tfswap {

// A queue of GPU commands, a CUDA stream: commands of one queue run in order, different queues run
// concurrently. Copies to and from the spill file have their own queues, so that they do not wait
// for the dependencies of other copies.
enum class Queue : int { kCompute = 0, kOut = 1, kIn = 2, kFileOut = 3, kFileIn = 4 };
inline constexpr int kQueues = 5;
inline constexpr Queue kCopyQueues[] = {Queue::kOut, Queue::kIn, Queue::kFileOut, Queue::kFileIn};
inline bool IsOut(Queue queue) { return queue == Queue::kOut || queue == Queue::kFileOut; }

// The representation of a device block in host memory. Codecs are numbered as on the GPU.
struct Form {
  enum class Kind { kPlain, kEncoded, kZeroCount, kWeights };

  Kind kind = Kind::kPlain;
  int codec = 0;                  // of kEncoded and kWeights
  int word_bytes = 4;             // of all but kPlain
  int every = 1;                  // of kZeroCount: sampling interval
  uint64_t* far_bytes = nullptr;  // of kEncoded: pinned; receives the encoded size unless null
};

// A transfer between a device block and pinned host memory: from the block if out, to it if in.
struct Transfer {
  void* block;
  int64_t block_bytes;
  void* host;
  int64_t host_bytes;  // upper bound of the bytes accessed; exact if plain
  Form form = {};
};

// The GPU operations that swapping needs, none of which blocks the host: CUDA streams and events,
// or a simulation of them. Thread-safe.
class Gpu {
 public:
  using Event = void*;

  virtual ~Gpu() = default;

  // Return an event that completes when all commands given to `queue` so far have ended.
  virtual Event Record(Queue queue) = 0;
  // Make all later commands of `queue` wait for the event.
  virtual void Wait(Queue queue, Event event) = 0;
  virtual bool HasHappened(Event event) = 0;
  // Release the event. Waits for it that were enqueued stay valid.
  virtual void Recycle(Event event) = 0;
  // Enqueue a transfer; an out queue reads the block and writes to host memory, an in queue the
  // reverse. Return whether the GPU accepted the command.
  virtual bool Move(Queue queue, const Transfer& transfer) = 0;
};

}  // namespace tfswap

#endif  // TFSWAP_CC_CORE_GPU_GPU_H_
