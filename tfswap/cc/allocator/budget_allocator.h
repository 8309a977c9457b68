#ifndef TFSWAP_CC_ALLOCATOR_BUDGET_ALLOCATOR_H_
#define TFSWAP_CC_ALLOCATOR_BUDGET_ALLOCATOR_H_

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "allocator/adaptor.h"
#include "allocator/kernel_scope.h"
#include "allocator/recording_allocator.h"
#include "allocator/shortage.h"
#include "core/memory/address_table.h"
#include "core/memory/slab.h"

namespace tfswap {

// Somebody who can make room: the copy engine. Called without the allocator's locks held.
class Reclaimer {
 public:
  virtual ~Reclaimer() = default;
  // Starts to move at least `bytes` bytes off the device if it can; returns the bytes it started.
  virtual int64_t Reclaim(int64_t bytes) = 0;
  // Bytes that are being copied off the device: they become free without further action.
  virtual int64_t BytesLeaving() const = 0;
  // Is a tensor, whose memory is there, being filled? Ops that wait for it will run, and free some.
  virtual bool IsCopyingIn() const = 0;
  // Whether anything in the steps that run can be moved, or has been.
  virtual bool InForce() const = 0;
  // Why Reclaim() could not move so many bytes more, and what to do ("" when it simply has nothing
  // left to move).
  virtual std::string WhyBlocked(int64_t missing_bytes) const = 0;
};

// Memory that is paid for and idle: a slab's.
class SpareMemory {
 public:
  virtual ~SpareMemory() = default;
  // Gives idle memory back to whoever paid for it; answers how many bytes.
  virtual int64_t Release(int64_t bytes) = 0;
  // Whether more can be put behind it; if not, what is idle is somebody's place, and others take it
  // only where there is nothing else.
  virtual bool Grows() const = 0;
  // A block out of it for what its owner has just passed on for lack of memory; the owner frees it.
  // Null if there is still no place.
  virtual void* AllocateFallback(size_t alignment, size_t bytes) = 0;
  // Its addresses for an error text; "" if it has none.
  virtual std::string Picture() const = 0;
};

struct BudgetStats {
  int64_t budget_bytes = 0;  // 0: no limit
  int64_t bytes_in_use = 0;
  int64_t peak_bytes = 0;
  int64_t window_peak_bytes = 0;  // since RestartWindow()
  // By how much the budget would have been passed since then, had nothing been reclaimed.
  int64_t window_lack_bytes = 0;
  int64_t waits = 0;    // allocations that had to wait for memory
  int64_t wait_ns = 0;  // for how long, in all
  int64_t failures = 0;
};

// A hard cap over another allocator. Bytes in use never exceed the budget, not for a moment. An
// allocation that does not fit is given idle memory (SpareMemory) or has idle buffers moved away
// (Reclaimer), then waits for copies in flight and for other kernels to end, and only then fails,
// with a text that names the op, its bytes, the largest holders and the smallest budget that could
// work. A workspace (workspace_allocator.h) is made room for like everything else, since without it
// the kernel would compute otherwise; but where it cannot be had, nothing is said. Thread-safe.
class BudgetAllocator : public Adaptor, public MemoryAccount {
 public:
  explicit BudgetAllocator(tensorflow::Allocator* next) : Adaptor(next) {}

  // While an allocation of this thread has just failed, the name carries the reason: it is the one
  // part of TensorFlow's own out-of-memory error that an allocator can write.
  std::string Name() override;
  // The reason that no error of TensorFlow's has told so far; "" if there is none. Of this thread.
  static std::string TakeUntold();
  using Adaptor::AllocateRaw;
  void* AllocateRaw(size_t alignment, size_t num_bytes,
                    const tensorflow::AllocationAttributes& attributes) override;
  void DeallocateRaw(void* ptr) override;
  std::optional<tensorflow::AllocatorStats> GetStats() override;
  bool ClearStats() override;

  // Charges memory that another allocator hands out.
  bool TryReserve(int64_t bytes) override;
  void Release(int64_t bytes) override;
  int64_t OverBudgetBytes() const override {
    return HasBudget() ? std::max(Beyond(0), int64_t{0}) : 0;
  }
  // The same, if need be after idle memory was given back.
  bool Pay(int64_t bytes);
  // Calls `take` until it succeeds, as long as copies out are on their way: what they leave comes
  // free without anybody's doing. Kernels that wait for memory go first. Answers whether it did.
  bool WhileLeaving(const std::function<bool()>& take);
  // Has allocations that wait look again.
  void NotifyFreed();

  // 0 takes the limit away. A budget below what is in use holds from the next allocation on.
  void SetBudget(int64_t budget_bytes);
  // Has what can leave do so now, as far as more is in use than the budget.
  void MakeRoom();
  bool HasBudget() const { return limit_.load(std::memory_order_relaxed) > 0; }
  void SetReclaimer(Reclaimer* reclaimer) { reclaimer_ = reclaimer; }
  void SetSpareMemory(SpareMemory* spare) { spare_ = spare; }
  // Who is asked for the holders when an allocation fails.
  void SetHolders(RecordingAllocator* holders) { holders_ = holders; }
  BudgetStats Stats() const;
  // A peak of its own for whoever measures single steps; ClearStats() leaves it alone.
  void RestartWindow();

  // Kernels that run now and may free memory when they end.
  void KernelBegins(int64_t step_id) {
    running_.fetch_add(1, std::memory_order_relaxed);
    if (last_step_.load(std::memory_order_relaxed) != step_id) NoteStep(step_id);
  }
  void KernelEnds();

 private:
  enum class Refusal { kNone, kBudget, kFragments };

  // By how much the budget would be exceeded with so many more bytes in use.
  int64_t Beyond(int64_t bytes) const { return in_use_.load() + bytes - limit_.load(); }

  void NoteStep(int64_t step_id);
  int64_t BytesAtStart(int64_t step_id);
  // Is this a swap-in while kernels wait for memory?
  bool MustDefer() const;
  struct Request {
    size_t alignment;
    size_t bytes;
    int64_t counted() const { return KernelScope::PaysFor(static_cast<int64_t>(bytes)); }
    const tensorflow::AllocationAttributes& attributes;
  };

  // A block of the next allocator's, if need be after idle memory was given back, or one of idle
  // memory. Does not wait.
  void* Obtain(const Request& request, Refusal* refusal);
  // The same, however long it takes.
  void* ObtainOrWait(const Request& request, Refusal* refusal);
  // The same, after parked tensors were moved away, and without waiting for anything.
  void* ObtainNow(const Request& request, Refusal* refusal);
  // Makes the reclaimer move so many bytes away; returns how many it moves.
  int64_t Reclaim(int64_t bytes);
  // What has to leave before it fits.
  int64_t Missing(const Request& request, Refusal refusal) const;
  // For what is reserved.
  void* FromNext(const Request& request, Refusal* refusal);
  // What is known of an allocation that is refused.
  Shortage ShortageOf(const Request& request, Refusal refusal);

  Reclaimer* reclaimer_ = nullptr;
  SpareMemory* spare_ = nullptr;
  RecordingAllocator* holders_ = nullptr;

  std::atomic<int64_t> limit_{0};  // 0: none
  std::atomic<int64_t> in_use_{0};
  std::atomic<int64_t> peak_{0};
  std::atomic<int64_t> window_peak_{0};
  std::atomic<int64_t> window_lack_{0};
  std::atomic<int64_t> window_reclaimed_{0};
  std::atomic<int64_t> running_{0};  // kernels
  std::atomic<int64_t> waits_{0};
  std::atomic<int64_t> wait_ns_{0};
  std::atomic<int64_t> failures_{0};

  std::mutex wait_mu_;
  std::condition_variable freed_;
  std::atomic<int> waiting_{0};          // threads that wait
  std::atomic<int> waiting_kernels_{0};  // those of them that wait inside a running kernel
  std::atomic<int64_t> releases_{0};     // frees so far: how waiters see progress
  std::atomic<int64_t> ends_{0};         // kernels that ended while a thread waited

  // What was in use when the newest steps began (functions and input pipelines interleave):
  // weights, optimiser state, batches.
  struct StepStart {
    int64_t step_id;
    int64_t bytes;
  };
  std::mutex steps_mu_;
  std::deque<StepStart> steps_;
  std::atomic<int64_t> last_step_{-1};
};

}  // namespace tfswap

#endif  // TFSWAP_CC_ALLOCATOR_BUDGET_ALLOCATOR_H_
