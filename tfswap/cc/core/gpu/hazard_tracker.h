#ifndef TFSWAP_CC_CORE_GPU_HAZARD_TRACKER_H_
#define TFSWAP_CC_CORE_GPU_HAZARD_TRACKER_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <mutex>
#include <unordered_map>

#include "core/gpu/gpu.h"

namespace tfswap {

// Lets copies run beside compute, each waiting for nothing but what it must.
//
//   host      alloc A  op(A)  copy out A  free A  alloc B (at A's addresses)  op(B)
//   compute            op(A) ------------------------------------------ wait ~~~ op(B)
//   out                      wait ~ copy A ==================================|
//
// Memory is handed out in the order of the host, which runs far ahead of the GPU: a block may be
// freed, and its addresses be somebody else's, while a copy still reads them. So all that touches
// addresses from another queue is written down until it has happened, and whoever gets them next
// waits for it, on the GPU: a copy out for its producer and for whoever had its host memory, a
// copy in for the last reader and writer of the addresses that it fills, compute for copies from
// and to the addresses that it is given.
//
// It relies on the host's contract with the GPU: a block is freed after the last command that uses
// it was given. Thread-safe.
class HazardTracker {
 public:
  // How the memory below behaves. kInOrder: addresses stay as they are when a block is freed.
  // kStreamOrdered: memory comes and goes with compute's queue (cudaMallocAsync), so nobody else
  // may touch it behind compute's free, nor before compute's allocation.
  enum class Memory { kInOrder, kStreamOrdered };

  HazardTracker(Gpu* gpu, Memory memory) : gpu_(gpu), memory_(memory) {}
  HazardTracker(const HazardTracker&) = delete;
  HazardTracker& operator=(const HazardTracker&) = delete;
  ~HazardTracker();

  // Until the first copy, nothing is tracked and nothing costs anything.
  bool active() const { return active_.load(std::memory_order_relaxed); }

  // An op of compute's is about to be given to the GPU. Few of the calls do anything: an event
  // between ops is what copies into addresses freed before can wait for.
  void OpBegins() {
    if (event_wanted_.load(std::memory_order_relaxed)) RecordBetweenOps();
  }
  // Compute is about to read (or write) the block that begins there.
  void BeforeUse(const void* block) {
    if (filling_.load(std::memory_order_relaxed) > 0) WaitForFill(block);
  }
  // The host has got the block, for compute.
  void Acquired(const void* block, int64_t bytes);
  // The host gives the block back: compute has been given all that uses it.
  void Released(const void* block, int64_t bytes);

  // To host memory and back, as a copy or encoded: who has to wait for whom is the same. False if
  // the GPU refused the command.
  bool MoveOut(const Transfer& transfer);
  bool MoveIn(const Transfer& transfer);
  bool CopyOut(void* host, const void* block, int64_t bytes) {
    return MoveOut({const_cast<void*>(block), bytes, host, bytes});
  }
  bool CopyIn(void* block, const void* host, int64_t bytes) {
    return MoveIn({block, bytes, const_cast<void*>(host), bytes});
  }

  // A block that is moved piece by piece, while the host goes on: where it begins, and what compute
  // had been given when that began. Its pieces wait for no more of compute than that.
  struct Whole {
    const void* block;
    int64_t point;
  };
  Whole BeginOut(const void* block);
  Whole BeginIn(const void* block);
  // Pieces of it, in order, on the queues of the file. The block is nobody else's before the last.
  bool MovePieceOut(const Whole& whole, const Transfer& piece);
  bool MovePieceIn(const Whole& whole, const Transfer& piece);

  // No copy that was given touches the host memory any more: then it may be unmapped, or be the
  // host's.
  bool IsIdle(const void* host, int64_t bytes);

  // How often a queue was made to wait for another one: by waiter, then by who is waited for.
  std::array<std::array<int64_t, kQueues>, kQueues> waits() const;
  // What is remembered: freed blocks and copies that have not happened yet, as far as is known.
  int64_t remembered() const;

 private:
  // What a queue had been given when: points of a queue count what was written down about it.
  using Clock = std::array<int64_t, kQueues>;

  struct Touch {
    uintptr_t begin;
    uintptr_t end;
    int64_t point;
    bool writes;
  };
  struct Recorded {
    int64_t point;
    Gpu::Event event;
    Clock clock;  // what the queue itself waited for before it
  };
  struct Line {
    int64_t now = 0;        // the last point
    int64_t happened = 0;   // all up to it are known to have ended
    int64_t forgotten = 0;  // touches up to it are no longer written down one by one
    std::deque<Recorded> events;
    std::deque<Touch> touches;  // by point
    Clock clock = {};           // for each other queue, the point behind which this one is
    std::array<int64_t, kQueues> waits = {};
  };

  // A copy that fills a block.
  struct Fill {
    Queue queue;
    int64_t point;
  };

  Line& line(Queue queue) { return lines_[static_cast<int>(queue)]; }
  void RecordBetweenOps();
  void WaitForFill(const void* block);
  void Activate();
  Whole BeginOutLocked(const void* block);
  Whole BeginInLocked(const void* block);
  bool Out(Queue queue, const Whole& whole, const Transfer& transfer);
  bool In(Queue queue, const Whole& whole, const Transfer& transfer);
  // All that compute has been given; with an event, so that nobody waits for more.
  int64_t MarkCompute();
  // Makes `queue` wait for everything that touches the addresses in a way that excludes this.
  void WaitForOthers(Queue queue, uintptr_t begin, uintptr_t end, bool writes);
  void WaitForPoint(Queue queue, Queue other, int64_t point);
  const Recorded& EventBehind(Queue queue, int64_t point);
  void Note(Queue queue, const void* begin, int64_t bytes, bool writes);
  void Record(Queue queue);
  // Finds out what has happened, and forgets it.
  void Prune(Queue queue);

  Gpu* const gpu_;
  const Memory memory_;
  std::atomic<bool> active_{false};
  std::atomic<bool> event_wanted_{false};
  std::atomic<int> filling_{0};

  mutable std::mutex mu_;
  std::array<Line, kQueues> lines_;
  // Blocks that copies fill, by first address: the last copy. Gone when compute waits for it.
  std::unordered_map<uintptr_t, Fill> fills_;
  int64_t acquired_ = 0;
};

}  // namespace tfswap

#endif  // TFSWAP_CC_CORE_GPU_HAZARD_TRACKER_H_
