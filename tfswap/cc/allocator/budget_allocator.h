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

// Frees memory on demand; implemented by the copy engine. Called without the allocator's locks.
class Reclaimer {
 public:
  virtual ~Reclaimer() = default;
  // Start swapping out at least `bytes` bytes if possible. Return the bytes that were started.
  virtual int64_t Reclaim(int64_t bytes) = 0;
  // Release what was swapped out while ops were still reading it, and is read no more. Called
  // before each allocation.
  virtual void ReleaseUnread() {}
  // Return the bytes that are being swapped out, which become free without further action.
  virtual int64_t BytesLeaving() const = 0;
  // Return whether an allocated tensor is being filled. The ops that wait for it will run and free
  // memory.
  virtual bool IsCopyingIn() const = 0;
  // Return whether anything in the running steps can be swapped, or has been.
  virtual bool IsSwapping() const = 0;
  // Return why Reclaim() could not swap out so many more bytes, and what to do; "" if there is
  // simply nothing left to swap out.
  virtual std::string WhyBlocked(int64_t missing_bytes) const = 0;
};

// Memory that is charged to the budget but idle; implemented by the slab.
class SpareMemory {
 public:
  virtual ~SpareMemory() = default;
  // Release idle memory, and what was charged for it. Return its bytes.
  virtual int64_t Release(int64_t bytes) = 0;
  // Return whether the memory can grow. If not, idle memory is the planned address of some block,
  // and other blocks may use it only as a last resort.
  virtual bool Grows() const = 0;
  // Return a block of this memory for an allocation that it has just passed on for lack of memory;
  // null if there is still no space. The block is freed through the owner of this memory.
  virtual void* AllocateFallback(size_t alignment, size_t bytes) = 0;
  // Return a picture of its addresses for an error message; "" if it has none.
  virtual std::string Picture() const = 0;
};

struct BudgetStats {
  int64_t budget_bytes = 0;  // 0: no limit
  int64_t bytes_in_use = 0;
  int64_t peak_bytes = 0;
  int64_t window_peak_bytes = 0;  // since RestartWindow()
  // By how much the budget would have been exceeded since then without reclaiming.
  int64_t window_lack_bytes = 0;
  int64_t waits = 0;    // allocations that had to wait for memory
  int64_t wait_ns = 0;  // their total time
  int64_t failures = 0;
  // Workspaces that did not fit: their kernels used other algorithms, which round differently.
  int64_t workspaces_declined = 0;
};

// A hard limit on another allocator: the bytes that it hands out (of BFC: whole chunks) never
// exceed the budget, except while a chunk that turned out too large is given back. An allocation
// that does not fit gets idle memory (SpareMemory), or evicts idle buffers (Reclaimer). Then it
// waits for running copies and for other kernels to end. Only then it fails, with an error that
// names the op, its bytes, the largest holders and the smallest budget that could work. The same
// holds for a workspace (workspace_allocator.h), because without it the kernel would use another
// algorithm, which rounds differently; but a workspace fails without an error. Thread-safe.
class BudgetAllocator : public Adaptor, public MemoryAccount {
 public:
  explicit BudgetAllocator(tensorflow::Allocator* next) : Adaptor(next) {}

  // Return the name, followed by the reason if an allocation of this thread has just failed. The
  // name is the only part of TensorFlow's out-of-memory error that an allocator can write.
  std::string Name() override;
  // Return and clear the reason of this thread's last failure that no TensorFlow error has reported
  // yet; "" if there is none.
  static std::string TakeUnreportedShortage();
  // Add that reason to the error of a kernel whose error does not name the allocator: a compiled
  // kernel's, or that of a copy from another device.
  static void Explain(tensorflow::OpKernelContext* context);
  using Adaptor::AllocateRaw;
  void* AllocateRaw(size_t alignment, size_t num_bytes,
                    const tensorflow::AllocationAttributes& attributes) override;
  void DeallocateRaw(void* ptr) override;
  std::optional<tensorflow::AllocatorStats> GetStats() override;
  bool ClearStats() override;

  // Charge memory that another allocator hands out.
  bool TryReserve(int64_t bytes) override;
  void Release(int64_t bytes) override;
  int64_t OverBudgetBytes() const override {
    return HasBudget() ? std::max(Beyond(0), int64_t{0}) : 0;
  }
  // The same, after releasing idle memory if necessary.
  bool Pay(int64_t bytes);
  // Call `take` until it succeeds, while copies out are running, whose memory becomes free without
  // further action. Kernels that wait for memory go first. Return whether `take` succeeded.
  bool WhileLeaving(const std::function<bool()>& take);
  // Make waiting allocations try again.
  void NotifyFreed();

  // 0 removes the limit. A budget below the bytes in use applies from the next allocation on.
  void SetBudget(int64_t budget_bytes);
  // Swap out what can be swapped out until the bytes in use are within the budget.
  void MakeRoom();
  bool HasBudget() const { return limit_.load(std::memory_order_relaxed) > 0; }
  void SetReclaimer(Reclaimer* reclaimer) { reclaimer_ = reclaimer; }
  void SetSpareMemory(SpareMemory* spare) { spare_ = spare; }
  // Set the allocator that lists the holders when an allocation fails.
  void SetHolders(RecordingAllocator* holders) { holders_ = holders; }
  BudgetStats Stats() const;
  // Restart the window's peak, which measures single steps. ClearStats() does not change it.
  void RestartWindow();

  // Count running kernels, which may free memory when they end.
  void KernelBegins(int64_t step_id) {
    running_.fetch_add(1, std::memory_order_relaxed);
    if (last_step_.load(std::memory_order_relaxed) != step_id) NoteStep(step_id);
  }
  void KernelEnds();

 private:
  enum class Refusal { kNone, kBudget, kFragments };

  // Return by how much the budget would be exceeded with so many more bytes in use.
  int64_t Beyond(int64_t bytes) const { return in_use_.load() + bytes - limit_.load(); }

  void NoteStep(int64_t step_id);
  int64_t BytesAtStart(int64_t step_id);
  // Return whether this thread serves a swap-in while kernels wait for memory.
  bool MustDefer() const;
  struct Request {
    size_t alignment;
    size_t bytes;
    int64_t counted() const { return KernelScope::PaysFor(static_cast<int64_t>(bytes)); }
    const tensorflow::AllocationAttributes& attributes;
  };

  // Return a block of the next allocator, after releasing idle memory if necessary, or a block of
  // idle memory. Does not wait.
  void* Obtain(const Request& request, Refusal* refusal);
  // The same, but reclaim and wait until it succeeds or cannot.
  void* ObtainOrWait(const Request& request, Refusal* refusal);
  // The same, after evicting tensors, without waiting.
  void* ObtainNow(const Request& request, Refusal* refusal);
  // Make the reclaimer swap out so many bytes. Return how many it started to swap out.
  int64_t Reclaim(int64_t bytes);
  // Return the bytes that must be released before the request fits.
  int64_t Missing(const Request& request, Refusal refusal) const;
  // Allocate bytes that are already reserved.
  void* FromNext(const Request& request, Refusal* refusal);
  // Return what the error message of a refused allocation needs.
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
  std::atomic<int64_t> workspaces_declined_{0};

  std::mutex wait_mu_;
  std::condition_variable freed_;
  std::atomic<int> waiting_{0};          // threads that wait
  std::atomic<int> waiting_kernels_{0};  // those of them that wait inside a running kernel
  std::atomic<int64_t> releases_{0};     // frees so far; waiting threads see progress by it
  std::atomic<int64_t> ends_{0};         // kernels that ended while a thread waited

  // The bytes in use when the latest steps began (functions and input pipelines interleave):
  // weights, optimizer state, batches.
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
