#ifndef TFSWAP_CC_ALLOCATOR_BUDGET_ALLOCATOR_H_
#define TFSWAP_CC_ALLOCATOR_BUDGET_ALLOCATOR_H_

#include <algorithm>
#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "allocator/adaptor.h"
#include "allocator/jobs.h"
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
  // Starts to move at least `bytes` bytes off the device if it can, of one job or (0) of anybody;
  // returns what it started.
  virtual int64_t Reclaim(int64_t bytes, int job) = 0;
  // Bytes on their way off the device, likewise: they will be free without anybody's doing.
  virtual int64_t BytesLeaving(int job) const = 0;
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
  // Whether a block is of its memory.
  virtual bool Owns(const void* ptr) const = 0;
  // Whether more can be put behind it; if not, what is idle is somebody's place, and others take it
  // only where there is nothing else.
  virtual bool Grows() const = 0;
  // A block out of it for what its owner has just passed on for lack of memory; the owner frees it.
  // Null if there is still no place.
  virtual void* AllocateFallback(size_t alignment, size_t bytes) = 0;
  // Its addresses for an error text; "" if it has none.
  virtual std::string Picture() const = 0;
};

// Of all, or of one job, whose budget is its share.
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
//
// Jobs (jobs.h) that share the device have a share of the budget each, as hard as the budget. Where
// one's share is exhausted, only its own tensors make room and only its own ops are waited for:
//
//   |          budget                                     |
//   | everybody's |  share of job 1   |  share of job 2   |
//   |#############|########...........|#################..|
//
// As long as the shares and what is everybody's are no more than the budget, an allocation within a
// share finds the memory there, so no job ever waits for another one. That stays so when what is
// older than the jobs is freed, and the share of whose op frees it grows by that: a training that
// was alone until now replaces its variables.
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

  // Of memory that another allocator hands out. It is everybody's.
  bool TryReserve(int64_t bytes) override { return Reserve(bytes, nullptr) == Refusal::kNone; }
  void Release(int64_t bytes) override {
    Release(bytes, nullptr);
    Inherit(bytes);
  }
  // Of a block's memory: what is given back before the block is freed.
  void ReleaseOf(const void* ptr, int64_t bytes);
  int64_t OverBudgetBytes() const override {
    return HasBudget() ? std::max(all_.Beyond(0), int64_t{0}) : 0;
  }
  // The same, if need be after idle memory was given back.
  bool Pay(int64_t bytes);
  // Calls `take` until it succeeds, as long as copies out are on their way: what they leave comes
  // free without anybody's doing. Kernels that wait for memory go first. Answers whether it did.
  bool WhileLeaving(const std::function<bool()>& take);
  // Has allocations that wait look again.
  void NotifyFreed() { NotifyFreed(nullptr); }

  // 0 takes the limit away. A budget below what is in use holds from the next allocation on.
  void SetBudget(int64_t budget_bytes);
  // Has what can leave do so now, as far as more is in use than the budget.
  void MakeRoom();
  // A job begins, with a share that may be changed, and ends. What it has by then is everybody's;
  // what there is when the first one begins is older than jobs.
  void BeginJob(int job, int64_t share_bytes);
  void SetShare(int job, int64_t share_bytes);
  void EndJob(int job);
  bool HasBudget() const { return all_.limit.load(std::memory_order_relaxed) > 0; }
  void SetReclaimer(Reclaimer* reclaimer) { reclaimer_ = reclaimer; }
  void SetSpareMemory(SpareMemory* spare) { spare_ = spare; }
  // Who is asked for the holders when an allocation fails.
  void SetHolders(RecordingAllocator* holders) { holders_ = holders; }
  // Of a job; of 0: of all.
  BudgetStats Stats(int job = 0) const;
  // What is in use and no job's.
  int64_t EverybodysBytes() const;
  // A peak of its own for whoever measures single steps; ClearStats() leaves it alone.
  void RestartWindow(int job = 0);

  // Kernels that run now and may free memory when they end.
  void KernelBegins(int64_t step_id, int job = 0) {
    all_.running.fetch_add(1, std::memory_order_relaxed);
    if (Account* own = AccountOf(job)) own->running.fetch_add(1, std::memory_order_relaxed);
    if (last_step_.load(std::memory_order_relaxed) != step_id) NoteStep(step_id, job);
  }
  void KernelEnds(int job = 0);

 private:
  // What is in use and who waits: in all, or of one job.
  struct Account {
    std::atomic<int> job{0};
    std::atomic<int64_t> limit{0};  // 0: none
    std::atomic<int64_t> in_use{0};
    std::atomic<int64_t> peak{0};
    std::atomic<int64_t> window_peak{0};
    std::atomic<int64_t> window_lack{0};
    std::atomic<int64_t> window_reclaimed{0};
    std::atomic<int64_t> running{0};
    std::atomic<int64_t> waits{0};
    std::atomic<int64_t> releases{0};     // frees so far: how waiters see progress
    std::atomic<int64_t> ends{0};         // kernels that ended while somebody waited
    std::atomic<int> waiting_kernels{0};  // threads that wait inside a running kernel

    bool Take(int64_t bytes);
    int64_t Beyond(int64_t bytes) const { return in_use.load() + bytes - limit.load(); }
    void RestartWindow();
  };
  enum class Refusal { kNone, kBudget, kShare, kFragments };

  // Null for 0, and for a job that has ended.
  Account* AccountOf(int job) {
    if (job == 0) return nullptr;
    Account& own = jobs_[Jobs::SlotOf(job)];
    return own.job.load(std::memory_order_acquire) == job ? &own : nullptr;
  }
  const Account* AccountOf(int job) const {
    return const_cast<BudgetAllocator*>(this)->AccountOf(job);
  }
  // Of the job that this thread works for.
  Account* Own() { return AccountOf(Jobs::Current()); }
  // Whose exhaustion a refusal is.
  Account& Refusing(Refusal refusal, Account* own) {
    return refusal == Refusal::kShare ? *own : all_;
  }
  Refusal Reserve(int64_t bytes, Account* own);
  void Unreserve(int64_t bytes, Account* own);
  void Release(int64_t bytes, Account* own);
  void NotifyFreed(Account* own);
  // What there is by now is older than jobs.
  void MarkOlder();
  // Such memory was freed: it is a part of a share from now on.
  void Inherit(int64_t bytes);
  // A block is charged to a job, or (kOlder) was there before; what it was.
  static constexpr int kOlder = -1;
  void Charge(const void* ptr, int job);
  int Discharge(const void* ptr);

  void NoteStep(int64_t step_id, int job);
  int64_t BytesAtStart(int64_t step_id);
  // Is this a swap-in while kernels wait for memory?
  bool MustDefer() const;
  struct Request {
    size_t alignment;
    size_t bytes;
    int64_t counted() const { return KernelScope::PaysFor(static_cast<int64_t>(bytes)); }
    const tensorflow::AllocationAttributes& attributes;
    Account* own;  // of the job that asks; null: of none
  };

  // A block of the next allocator's, if need be after idle memory was given back, or one of idle
  // memory. Does not wait.
  void* Obtain(const Request& request, Refusal* refusal);
  // The same, however long it takes.
  void* ObtainOrWait(const Request& request, Refusal* refusal);
  // The same, after parked tensors were moved away, and without waiting for anything.
  void* ObtainNow(const Request& request, Refusal* refusal);
  // Has the reclaimer move so many bytes away, of the job that asks first, and of others only
  // where the budget is exhausted and not its share; answers how many it does.
  int64_t Reclaim(int64_t bytes, Account* own, Refusal refusal);
  // What has to leave before it fits.
  int64_t Missing(const Request& request, Refusal refusal) const;
  // For what is reserved.
  void* FromNext(const Request& request, Refusal* refusal);
  // What is known of an allocation that is refused.
  Shortage ShortageOf(const Request& request, Refusal refusal);

  Reclaimer* reclaimer_ = nullptr;
  SpareMemory* spare_ = nullptr;
  RecordingAllocator* holders_ = nullptr;

  Account all_;
  std::array<Account, Jobs::kMost> jobs_;
  AddressTable<int> charged_;  // the job that a block is charged to, or kOlder
  std::atomic<int64_t> charged_blocks_{0};
  std::atomic<int64_t> wait_ns_{0};
  std::atomic<int64_t> failures_{0};

  std::mutex wait_mu_;
  std::condition_variable freed_;
  std::atomic<int> waiting_{0};  // threads that wait, in all

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
