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
  // Allocations of 4 KiB and more that did not get their slot, by cause: none was planned, it was
  // for another size, somebody was still there, or the budget had no room for its pages just then.
  int64_t unplanned = 0;
  int64_t other_size = 0;
  int64_t taken = 0;
  int64_t no_room = 0;
  // Of those: found another place in the slab, or went to the next allocator.
  int64_t moved = 0;
  int64_t moved_bytes = 0;
  int64_t missed = 0;
  int64_t missed_bytes = 0;
  // What outlives its step (a variable's new value): among the unplanned places.
  int64_t lasting = 0;
  int64_t lasting_bytes = 0;
  int64_t faults = 0;
};

// Serves what is planned from one slab, at its planned address; everything else, and whatever finds
// its place taken, gets a place behind the planned ones, or goes to the next allocator. The slots
// come from the op that this thread runs (KernelScope) and how many blocks of that kind it has
// asked for before.
class SlabAllocator : public SizedAdaptor, public SpareMemory {
 public:
  // `account` pays for the slab's memory (null: nobody has to), `freed` is called after each
  // release.
  SlabAllocator(tensorflow::Allocator* next, MemoryAccount* account,
                std::function<void()> freed = nullptr);
  // On a GPU: the slab is one block of the next allocator's, there while there are layouts.
  SlabAllocator(tensorflow::Allocator* next, std::function<void()> freed);

  using SizedAdaptor::AllocateRaw;
  void* AllocateRaw(size_t alignment, size_t num_bytes,
                    const tensorflow::AllocationAttributes& attributes) override;
  void DeallocateRaw(void* ptr) override;
  size_t RequestedSize(const void* ptr) const override;
  int64_t AllocationId(const void* ptr) const override;

  // Of a block in the slab, which is host memory: gives back what is behind its first bytes, all of
  // which it had; answers how much, and says so before those hear of it who wait for memory.
  int64_t ReleaseEnd(void* ptr, int64_t kept_bytes, const std::function<void(int64_t)>& given_back);
  // Sees to it that so much of it is there, from its beginning on. Does not wait.
  bool Pay(void* ptr, int64_t bytes) { return slab()->Pay(slab()->OffsetOf(ptr), bytes); }
  bool Owns(const void* ptr) const {
    const Slab* own = slab();
    return own != nullptr && own->Owns(ptr);
  }

  int64_t Release(int64_t bytes) override;
  bool Grows() const override { return !on_gpu_; }
  void* AllocateFallback(size_t alignment, size_t bytes) override;
  std::string Picture() const override;

  // Layouts of graphs (slab_layouts.h). The slab is as high as the highest.
  absl::Status Install(const std::string& graph, const std::string& text);
  void Remove(const std::string& graph);
  void Clear();
  // Not on a GPU: from now on everything goes to the slab, without a layout to unplanned places.
  // So memory that is free is the budget's to give, never the system allocator's to keep.
  absl::Status SetAlways(bool always);
  // Whether ops may have planned places.
  bool active() const { return layouts_.active(); }
  PlannedOpRef Find(const tensorflow::OpKernel& kernel) { return layouts_.Find(kernel); }

  PlannedOpRef FindByName(const std::string& graph, const std::string& op) {
    return layouts_.FindByName(graph, op);
  }

  void SetCheck(bool check);
  SlabAllocatorStats Stats() const;
  // The same without looking at the slab itself: only its limit is there.
  SlabAllocatorStats Counts() const;
  void ResetCounts();

 private:
  // What is planned for the allocation that this thread is about to make.
  static const Slot* NextSlot(int64_t bytes);
  bool Serves() const { return layouts_.active() || always_.load(std::memory_order_relaxed); }
  absl::Status MakeSlab();
  // At its planned place, which counts as a hit or by cause.
  Slab::Claimed Take(const Slot* slot, size_t alignment, int64_t bytes);
  // Something was.
  void Freed();
  // Among the unplanned places; null if nobody pays.
  void* Elsewhere(bool lasts, int64_t bytes);
  // All below: with mu_ held. On a GPU: sees to it that a block as high as the layouts is there.
  absl::Status FitBlock();
  // Gives the GPU's block back, if nobody is in it.
  bool DropBlock();
  Slab* slab() const { return slab_.load(std::memory_order_acquire); }

  MemoryAccount* const account_;
  const std::function<void()> freed_;
  const bool on_gpu_;
  SlabLayouts layouts_;
  std::atomic<bool> always_{false};
  std::mutex mu_;  // whoever makes the slab
  std::unique_ptr<Slab> owned_;
  std::atomic<Slab*> slab_{nullptr};
  void* block_ = nullptr;  // the GPU's, with what precedes the slab's first address

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
  // One that was served, or passed on; what follows is its bytes.
  void Count(Counted served, int64_t bytes);
  ThreadCounters<kCounters> counters_;
};

}  // namespace tfswap

#endif  // TFSWAP_CC_ALLOCATOR_SLAB_ALLOCATOR_H_
