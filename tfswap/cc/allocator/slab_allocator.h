#ifndef TFSWAP_ALLOCATOR_SLAB_ALLOCATOR_H_
#define TFSWAP_ALLOCATOR_SLAB_ALLOCATOR_H_

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "absl/status/status.h"
#include "allocator/adaptor.h"
#include "allocator/budget_allocator.h"
#include "allocator/slab_layouts.h"
#include "core/slab.h"

namespace tfswap {

struct SlabAllocatorStats {
  SlabStats slab;
  int64_t hits = 0;
  int64_t hit_bytes = 0;
  // Allocations of 4 KiB and more that did not get their slot, by cause: none was planned, it was
  // for another size, somebody was still there, or the budget had no room for its pages.
  int64_t unplanned = 0;
  int64_t other_size = 0;
  int64_t taken = 0;
  int64_t no_room = 0;
  // Of those: found another place in the slab, or went to the next allocator. (What waited for
  // memory and was given a place in the slab then is in both.)
  int64_t moved = 0;
  int64_t moved_bytes = 0;
  int64_t missed = 0;
  int64_t missed_bytes = 0;
  // What outlives its step is at home in the next allocator.
  int64_t lasting = 0;
  int64_t lasting_bytes = 0;
  int64_t faults = 0;
};

// Serves what is planned from one slab, at its planned address; everything else, and whatever finds
// its place taken, gets any other place there, high up, or goes to the next allocator. The slots
// come from the op that this thread runs (KernelScope) and how many blocks of that kind it has
// asked for before.
class SlabAllocator : public Adaptor, public SpareMemory {
 public:
  // `account` pays for the slab's memory (null: nobody has to), `freed` is called after each
  // release.
  SlabAllocator(tensorflow::Allocator* next, MemoryAccount* account,
                std::function<void()> freed = nullptr);

  using Adaptor::AllocateRaw;
  void* AllocateRaw(size_t alignment, size_t num_bytes,
                    const tensorflow::AllocationAttributes& attributes) override;
  void DeallocateRaw(void* ptr) override;
  bool TracksAllocationSizes() const override { return true; }
  size_t RequestedSize(const void* ptr) const override;
  size_t AllocatedSize(const void* ptr) const override { return RequestedSize(ptr); }
  int64_t AllocationId(const void* ptr) const override;

  int64_t GiveBack(int64_t bytes) override;
  void* Instead(size_t alignment, size_t bytes) override;

  // Layouts of graphs (slab_layouts.h). The slab is as high as the highest.
  absl::Status Install(const std::string& graph, const std::string& text);
  void Remove(const std::string& graph);
  void Clear();
  bool active() const { return layouts_.active(); }
  const PlannedOp* Find(const tensorflow::OpKernel& kernel) { return layouts_.Find(kernel); }

  const PlannedOp* FindByName(const std::string& graph, const std::string& op) {
    return layouts_.FindByName(graph, op);
  }

  void SetCheck(bool check);
  SlabAllocatorStats Stats() const;
  void ResetCounts();

 private:
  // What is planned for the allocation that this thread is about to make.
  static const Slot* NextSlot();
  void* Take(const Slot* slot, size_t alignment, int64_t bytes);
  Slab* slab() const { return slab_.load(std::memory_order_acquire); }

  MemoryAccount* const account_;
  const std::function<void()> freed_;
  SlabLayouts layouts_;
  std::mutex mu_;  // whoever makes the slab
  std::unique_ptr<Slab> owned_;
  std::atomic<Slab*> slab_{nullptr};

  std::atomic<int64_t> hits_{0}, hit_bytes_{0}, moved_{0}, moved_bytes_{0};
  std::atomic<int64_t> unplanned_{0}, other_size_{0}, taken_{0}, no_room_{0}, missed_{0},
      missed_bytes_{0};
  std::atomic<int64_t> lasting_{0}, lasting_bytes_{0};
};

}  // namespace tfswap

#endif  // TFSWAP_ALLOCATOR_SLAB_ALLOCATOR_H_
