#ifndef TFSWAP_DEVICE_BUDGET_ALLOCATOR_H_
#define TFSWAP_DEVICE_BUDGET_ALLOCATOR_H_

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <string>
#include <unordered_set>
#include <vector>

#include "device/step_recorder.h"
#include "tensorflow/core/framework/allocator.h"

namespace tfswap {

// Somebody who can make room: the copy engine. Called without the allocator's locks held.
class Reclaimer {
 public:
  virtual ~Reclaimer() = default;
  // Starts to move at least `bytes` bytes off the device if it can; returns what it started.
  virtual int64_t Reclaim(int64_t bytes) = 0;
  // Bytes on their way off the device: they will be free without anybody's doing.
  virtual int64_t BytesLeaving() const = 0;
  // Is a tensor, whose memory is there, being filled? Ops that wait for it will run, and free some.
  virtual bool IsCopyingIn() const = 0;
  // Whether anything in the steps that run can be moved, or has been.
  virtual bool InForce() const = 0;
  // Why Reclaim() could do no more ("" when it simply has nothing left to move).
  virtual std::string Hindrance() const = 0;
};

struct BudgetStats {
  int64_t budget_bytes = 0;  // 0: no limit
  int64_t bytes_in_use = 0;
  int64_t peak_bytes = 0;
  int64_t window_peak_bytes = 0;  // since RestartWindow()
  int64_t largest_request_bytes = 0;
  int64_t allocations = 0;
  int64_t waits = 0;    // allocations that had to wait for memory
  int64_t wait_ns = 0;  // for how long, in all
  int64_t failures = 0;
};

// A hard cap over another allocator. Bytes in use never exceed the budget, not for a moment. An
// allocation that does not fit first has idle buffers moved away (Reclaimer), then waits for copies
// in flight and for other kernels to end, and only then fails, with a text that names the op, its
// bytes, the largest holders and the smallest budget that could work. Thread-safe.
//
// Each block carries a 64-byte header, so that a free finds its size without a look-up:
//
//   | padding | header | bytes asked for ... |
//                      ^ aligned as asked
class BudgetAllocator : public tensorflow::Allocator {
 public:
  BudgetAllocator(std::string name, tensorflow::Allocator* base);

  // While an allocation of this thread has just failed, the name carries the reason: it is the one
  // part of TensorFlow's own out-of-memory error that an allocator can write.
  std::string Name() override;
  void* AllocateRaw(size_t alignment, size_t num_bytes) override;
  void* AllocateRaw(size_t alignment, size_t num_bytes,
                    const tensorflow::AllocationAttributes& attributes) override;
  void DeallocateRaw(void* ptr) override;
  bool TracksAllocationSizes() const override { return true; }
  size_t RequestedSize(const void* ptr) const override;
  int64_t AllocationId(const void* ptr) const override;
  std::optional<tensorflow::AllocatorStats> GetStats() override;
  bool ClearStats() override;
  tensorflow::AllocatorMemoryType GetMemoryType() const override;

  // 0 takes the limit away. A budget below what is in use holds from the next allocation on.
  void SetBudget(int64_t budget_bytes);
  bool HasBudget() const { return budget_.load(std::memory_order_relaxed) > 0; }
  void SetReclaimer(Reclaimer* reclaimer) { reclaimer_ = reclaimer; }
  BudgetStats Stats() const;
  // A peak of its own for whoever measures single steps; ClearStats() leaves it alone.
  void RestartWindow() { window_peak_.store(in_use_.load()); }

  // Kernels that run now and may free memory when they end.
  void KernelBegins(int64_t step_id) {
    running_.fetch_add(1, std::memory_order_relaxed);
    if (last_step_.load(std::memory_order_relaxed) != step_id) NoteStep(step_id);
  }
  void KernelEnds();

  StepRecorder* recorder() { return &recorder_; }
  void StartRecording();
  StepTrace StopRecording() { return recorder_.Stop(); }

 private:
  struct Header;
  struct Holder {
    std::string op;
    const char* kind;
    int64_t bytes;
    int64_t step_id;
  };

  static Header* HeaderOf(const void* ptr);
  void NoteStep(int64_t step_id);
  int64_t BytesAtStart(int64_t step_id);
  bool TryReserve(int64_t bytes);
  // Is this a swap-in while kernels wait for memory?
  bool MustDefer() const;
  bool ReserveOrWait(int64_t bytes);
  void Release(int64_t bytes);
  std::string WhyNot(int64_t bytes);
  std::vector<Holder> Holders();

  const std::string name_;
  tensorflow::Allocator* const base_;
  Reclaimer* reclaimer_ = nullptr;

  std::atomic<int64_t> budget_{0};
  std::atomic<int64_t> in_use_{0};
  std::atomic<int64_t> peak_{0};
  std::atomic<int64_t> window_peak_{0};
  std::atomic<int64_t> largest_{0};
  std::atomic<int64_t> allocations_{0};
  std::atomic<int64_t> running_{0};
  std::atomic<int64_t> waits_{0};
  std::atomic<int64_t> wait_ns_{0};
  std::atomic<int64_t> failures_{0};
  std::atomic<int64_t> releases_{0};  // frees so far: how waiters see progress

  std::mutex wait_mu_;
  std::condition_variable freed_;
  std::atomic<int> waiting_{0};          // threads that wait, in all
  std::atomic<int> waiting_kernels_{0};  // of those, inside a running kernel

  std::mutex blocks_mu_;  // guards the list of blocks and the names
  Header* blocks_ = nullptr;
  int64_t next_id_ = 1;
  std::unordered_set<std::string> names_;

  // What was in use when the newest steps began (functions and input pipelines interleave):
  // weights, optimiser state, batches.
  struct StepStart {
    int64_t step_id;
    int64_t bytes;
  };
  std::mutex steps_mu_;
  std::deque<StepStart> steps_;
  std::atomic<int64_t> last_step_{-1};

  StepRecorder recorder_;
};

std::string ReadableBytes(int64_t bytes);

}  // namespace tfswap

#endif  // TFSWAP_DEVICE_BUDGET_ALLOCATOR_H_
