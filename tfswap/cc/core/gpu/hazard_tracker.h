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

// Orders copies and compute on a GPU so that each waits only for conflicting accesses.
//
//   host      alloc A  op(A)  copy out A  free A  alloc B (at A's addresses)  op(B)
//   compute            op(A) ------------------------------------------ wait ~~~ op(B)
//   out                      wait ~ copy A ==================================|
//
// Memory is allocated in the order of the host, which runs far ahead of the GPU: a block may be
// freed, and its addresses reused, while a copy still reads them. So every access to addresses from
// another queue is recorded until it has completed, and the next user of the addresses waits for it
// on the GPU: a copy-out for the producer and for the previous user of its host memory, a copy-in
// for the last reader and writer of the addresses that it fills, and compute for copies from and to
// the addresses that it is given.
//
// Assumes that a block is freed only after the last command that uses it was enqueued. Thread-safe.
class HazardTracker {
 public:
  // The behaviour of the device memory. kInOrder: addresses stay mapped when a block is freed.
  // kStreamOrdered: memory is allocated and freed in the order of compute's queue
  // (cudaMallocAsync), so other queues must not access it after compute's free or before compute's
  // allocation.
  enum class Memory { kInOrder, kStreamOrdered };

  HazardTracker(Gpu* gpu, Memory memory) : gpu_(gpu), memory_(memory) {}
  HazardTracker(const HazardTracker&) = delete;
  HazardTracker& operator=(const HazardTracker&) = delete;
  ~HazardTracker();

  // Tracking starts with the first copy and costs nothing before.
  bool active() const { return active_.load(std::memory_order_relaxed); }

  // Call this before an op is enqueued to compute. Rarely does anything: records an event between
  // ops, for copies into addresses that were freed before.
  void OpBegins() {
    if (event_wanted_.load(std::memory_order_relaxed)) RecordBetweenOps();
  }
  // Call this before compute accesses the block that starts there.
  void BeforeUse(const void* block) {
    if (filling_.load(std::memory_order_relaxed) > 0) WaitForFill(block);
  }
  // Call this after the block was allocated for compute.
  void Acquired(const void* block, int64_t bytes);
  // Call this before the block is freed: all commands that use it have been enqueued.
  void Released(const void* block, int64_t bytes);

  // Transfer to host memory and back, plain or encoded; the dependencies are the same. Return false
  // if the GPU refused the command.
  bool MoveOut(const Transfer& transfer);
  bool MoveIn(const Transfer& transfer);
  bool CopyOut(void* host, const void* block, int64_t bytes) {
    return MoveOut({const_cast<void*>(block), bytes, host, bytes});
  }
  bool CopyIn(void* block, const void* host, int64_t bytes) {
    return MoveIn({block, bytes, const_cast<void*>(host), bytes});
  }

  // A block that is moved in pieces while the host continues. Its pieces wait only for commands
  // that compute had been given when the move began.
  struct PiecewiseMove {
    const void* block;
    int64_t point;
  };
  PiecewiseMove BeginOut(const void* block);
  PiecewiseMove BeginIn(const void* block);
  // Transfer the pieces in order on the queues of the file. The block must stay allocated until the
  // last piece.
  bool MovePieceOut(const PiecewiseMove& move, const Transfer& piece);
  bool MovePieceIn(const PiecewiseMove& move, const Transfer& piece);

  // Return whether no enqueued copy accesses the host memory any more, so that it may be unmapped
  // or used by the host.
  bool IsIdle(const void* host, int64_t bytes);

  // The number of waits by waiting queue and by queue waited for.
  std::array<std::array<int64_t, kQueues>, kQueues> waits() const;
  // The number of recorded accesses that are not known to have completed.
  int64_t remembered() const;

 private:
  // A vector clock: for each queue, a point. The points of a queue count its recorded accesses.
  using Clock = std::array<int64_t, kQueues>;

  struct Access {
    uintptr_t begin;
    uintptr_t end;
    int64_t point;
    bool writes;
  };
  struct RecordedEvent {
    int64_t point;
    Gpu::Event event;
    Clock clock;  // what the queue had waited for before the event
  };
  struct QueueState {
    int64_t now = 0;       // the last point
    int64_t happened = 0;  // all points up to it have completed
    int64_t dropped = 0;   // accesses up to it are no longer recorded individually
    std::deque<RecordedEvent> events;
    std::deque<Access> accesses;  // by point
    Clock clock = {};             // for each other queue, the point that this one waited for
    std::array<int64_t, kQueues> waits = {};
  };

  // A copy that fills a block.
  struct Fill {
    Queue queue;
    int64_t point;
  };

  QueueState& state(Queue queue) { return queues_[static_cast<int>(queue)]; }
  void RecordBetweenOps();
  void WaitForFill(const void* block);
  void Activate();
  PiecewiseMove BeginOutLocked(const void* block);
  PiecewiseMove BeginInLocked(const void* block);
  bool Out(Queue queue, const PiecewiseMove& move, const Transfer& transfer);
  bool In(Queue queue, const PiecewiseMove& move, const Transfer& transfer);
  // Return the current point of compute, with an event, so that later commands are not waited for.
  int64_t MarkCompute();
  // Make `queue` wait for all conflicting accesses of other queues to the addresses.
  void WaitForOthers(Queue queue, uintptr_t begin, uintptr_t end, bool writes);
  void WaitForPoint(Queue queue, Queue other, int64_t point);
  const RecordedEvent& EventAfter(Queue queue, int64_t point);
  void AddAccess(Queue queue, const void* begin, int64_t bytes, bool writes);
  void Record(Queue queue);
  // Drop accesses that have completed.
  void Prune(Queue queue);

  Gpu* const gpu_;
  const Memory memory_;
  std::atomic<bool> active_{false};
  std::atomic<bool> event_wanted_{false};
  std::atomic<int> filling_{0};

  mutable std::mutex mu_;
  std::array<QueueState, kQueues> queues_;
  // The last copy that fills a block, by the block's first address; erased when compute waits for
  // it.
  std::unordered_map<uintptr_t, Fill> fills_;
  int64_t acquired_ = 0;
};

}  // namespace tfswap

#endif  // TFSWAP_CC_CORE_GPU_HAZARD_TRACKER_H_
