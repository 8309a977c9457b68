#ifndef TFSWAP_CC_CORE_GPU_GPU_H_
#define TFSWAP_CC_CORE_GPU_GPU_H_

#include <cstdint>

namespace tfswap {

// A queue of a GPU's commands: they run in order, those of different queues at once. CUDA calls it
// a stream. What a disk waits for has queues of its own: in another one it would wait for all that
// the copies before it wait for.
enum class Queue : int { kCompute = 0, kOut = 1, kIn = 2, kFileOut = 3, kFileIn = 4 };
inline constexpr int kQueues = 5;
inline constexpr Queue kCopyQueues[] = {Queue::kOut, Queue::kIn, Queue::kFileOut, Queue::kFileIn};
inline bool IsOut(Queue queue) { return queue == Queue::kOut || queue == Queue::kFileOut; }

// What a block of the GPU's becomes in host memory. Codecs have the GPU's own numbers.
struct Form {
  enum class Kind { kPlain, kEncoded, kZeroCount, kWeights };

  Kind kind = Kind::kPlain;
  int codec = 0;                  // of kEncoded and kWeights
  int word_bytes = 4;             // of all but kPlain
  int every = 1;                  // of kZeroCount: how much of it is looked at
  uint64_t* far_bytes = nullptr;  // of kEncoded: pinned; is told how long it became, if there
};

// Between a block of the GPU's and pinned host memory: out, from the block; in, to it.
struct Transfer {
  void* block;
  int64_t block_bytes;
  void* host;
  int64_t host_bytes;  // that are touched at most: as many, if it is plain
  Form form = {};
};

// Orders and moves on a GPU, without waiting on the host: CUDA's streams and events, or a model of
// them. Thread-safe.
class Gpu {
 public:
  using Event = void*;

  virtual ~Gpu() = default;

  // An event that happens when all that `queue` was given so far has ended.
  virtual Event Record(Queue queue) = 0;
  // What `queue` is given from now on starts after the event.
  virtual void Wait(Queue queue, Event event) = 0;
  virtual bool HasHappened(Event event) = 0;
  // Nobody will name the event again. Waits for it that were given stay.
  virtual void Recycle(Event event) = 0;
  // A queue out reads the block and writes to the host, one in the other way. Whether the GPU took
  // the command.
  virtual bool Move(Queue queue, const Transfer& transfer) = 0;
};

}  // namespace tfswap

#endif  // TFSWAP_CC_CORE_GPU_GPU_H_
