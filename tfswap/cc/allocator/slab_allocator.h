#ifndef TFSWAP_CC_ALLOCATOR_SLAB_ALLOCATOR_H_
#define TFSWAP_CC_ALLOCATOR_SLAB_ALLOCATOR_H_

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "absl/status/status.h"
#include "allocator/adaptor.h"
#include "allocator/budget_allocator.h"
#include "allocator/slab_layouts.h"
#include "core/memory/slab.h"
#include "core/util/thread_counters.h"

namespace tfswap {

struct SlabAllocatorStats {
  SlabStats slab;
  int64_t hits = 0;
  int64_t hit_bytes = 0;
  // Allocations of at least 1 KiB that did not get a slot, by cause: none was planned, the slot has
  // another size, another block is in it, or its pages did not fit in the budget.
  int64_t unplanned = 0;
  int64_t other_size = 0;
  int64_t taken = 0;
  int64_t no_room = 0;
  // Those that got another address in the slab, and those that went to the next allocator.
  int64_t moved = 0;
  int64_t moved_bytes = 0;
  int64_t missed = 0;
  int64_t missed_bytes = 0;
  // Blocks that outlive their step (a variable's new value), at unplanned addresses.
  int64_t lasting = 0;
  int64_t lasting_bytes = 0;
  int64_t faults = 0;
};

// Places planned blocks at their planned addresses in one slab. Other blocks, and those whose slot
// is taken, get an address behind the planned ones, or go to the next allocator. The slot depends
// on the op that this thread runs (KernelScope) and on how many blocks of that kind it has
// requested before.
class SlabAllocator : public SizedAdaptor, public SpareMemory {
 public:
  // `account` is charged for the slab's memory (null: it is not charged). `freed` is called after
  // each release.
  SlabAllocator(tensorflow::Allocator* next, MemoryAccount* account,
                std::function<void()> freed = nullptr);
  // For a GPU: the slab is one block of the next allocator, which exists while there are layouts.
  SlabAllocator(tensorflow::Allocator* next, std::function<void()> freed);

  using SizedAdaptor::AllocateRaw;
  void* AllocateRaw(size_t alignment, size_t num_bytes,
                    const tensorflow::AllocationAttributes& attributes) override;
  void DeallocateRaw(void* ptr) override;
  size_t RequestedSize(const void* ptr) const override;
  int64_t AllocationId(const void* ptr) const override;

  // Release the end of a fully charged block of a slab in host memory. Return the released bytes,
  // and pass them to `on_release` before waiting threads are notified.
  int64_t ReleaseEnd(void* ptr, int64_t kept_bytes, const std::function<void(int64_t)>& on_release);
  // Commit the first `bytes` bytes of a block, without waiting. Return whether that succeeded.
  bool Pay(void* ptr, int64_t bytes) { return slab()->Pay(slab()->OffsetOf(ptr), bytes); }
  bool Owns(const void* ptr) const {
    const Slab* own = slab();
    return own != nullptr && own->Owns(ptr);
  }

  int64_t Release(int64_t bytes) override;
  bool Grows() const override { return !on_gpu_; }
  void* AllocateFallback(size_t alignment, size_t bytes) override;
  std::string Picture() const override;

  // Install and remove layouts of graphs (slab_layouts.h). The slab is as high as the highest
  // layout.
  absl::Status Install(const std::string& graph, const std::string& text);
  void Remove(const std::string& graph);
  void Clear();
  // Serve all blocks from the slab, even without a layout, so that free memory returns to the
  // budget and is not kept by the system allocator. No effect on a GPU.
  absl::Status SetAlways(bool always);
  // Return whether ops may have planned addresses.
  bool active() const { return layouts_.active(); }
  PlannedOpRef Find(const tensorflow::OpKernel& kernel) { return layouts_.Find(kernel); }

  PlannedOpRef FindByName(const std::string& graph, const std::string& op) {
    return layouts_.FindByName(graph, op);
  }

  void SetCheck(bool check);
  SlabAllocatorStats Stats() const;
  // The same without the slab's own statistics, except for its limit.
  SlabAllocatorStats Counts() const;
  void ResetCounts();

 private:
  // Return the slot of the allocation that this thread is about to make; null if there is none.
  static const Slot* NextSlot(int64_t bytes);
  bool Serves() const { return layouts_.active() || always_.load(std::memory_order_relaxed); }
  absl::Status MakeSlab();
  // Try to claim the slot, and count a hit or the cause of a miss.
  Slab::Claimed Take(const Slot* slot, size_t alignment, int64_t bytes);
  // Notify waiting threads of a release.
  void Freed();
  // Return a block at an unplanned address; null if it does not fit in the budget.
  void* AllocateUnplanned(bool lasts, int64_t bytes);
  // Allocate a GPU's block for the highest layout. Call this and what follows with mu_ held.
  absl::Status FitBlock();
  // Free the GPU's block unless it is in use. Return whether it was freed.
  bool DropBlock();
  // Return memory that no block is in: on a GPU, the whole block or nothing.
  void ReturnIdle();
  Slab* slab() const { return slab_.load(std::memory_order_acquire); }

  MemoryAccount* const account_;
  const std::function<void()> freed_;
  const bool on_gpu_;
  SlabLayouts layouts_;
  std::atomic<bool> always_{false};
  std::mutex mu_;  // serializes changes of the slab
  std::unique_ptr<Slab> owned_;
  std::atomic<Slab*> slab_{nullptr};
  void* block_ = nullptr;  // the GPU's block, which begins at or before the slab's first address

  enum Counted {
    kHits,
    kHitBytes,
    kMoved,
    kMovedBytes,
    kMissed,
    kMissedBytes,
    kLasting,
    kLastingBytes,
    kUnplanned,
    kOtherSize,
    kTaken,
    kNoRoom,
    kCounters
  };
  // Count an allocation, and its bytes in the counter that follows.
  void Count(Counted served, int64_t bytes);
  ThreadCounters<kCounters> counters_;
};

}  // namespace tfswap

#endif  // TFSWAP_CC_ALLOCATOR_SLAB_ALLOCATOR_H_
