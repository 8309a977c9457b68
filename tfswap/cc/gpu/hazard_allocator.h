#ifndef TFSWAP_CC_GPU_HAZARD_ALLOCATOR_H_
#define TFSWAP_CC_GPU_HAZARD_ALLOCATOR_H_

#include "allocator/adaptor.h"
#include "allocator/kernel_scope.h"
#include "core/gpu/hazard_tracker.h"

namespace tfswap {

// Reports allocations and frees to the hazard tracker as accesses of compute, except for
// allocations of swap-ins.
class HazardAllocator : public Adaptor {
 public:
  // Without a tracker (until the device has its streams) it only forwards.
  explicit HazardAllocator(tensorflow::Allocator* next) : Adaptor(next) {}

  void SetTracker(HazardTracker* tracker) { tracker_.store(tracker, std::memory_order_release); }

  using Adaptor::AllocateRaw;
  void* AllocateRaw(size_t alignment, size_t num_bytes,
                    const tensorflow::AllocationAttributes& attributes) override {
    void* ptr = next()->AllocateRaw(alignment, num_bytes, attributes);
    HazardTracker* tracker = this->tracker();
    if (ptr == nullptr || tracker == nullptr || !tracker->active()) return ptr;
    const KernelScope* scope = KernelScope::current;
    if (scope == nullptr || scope->role != KernelScope::Role::kSwapIn) {
      tracker->Acquired(ptr, static_cast<int64_t>(num_bytes));
    }
    return ptr;
  }
  void DeallocateRaw(void* ptr) override {
    HazardTracker* tracker = this->tracker();
    if (ptr != nullptr && tracker != nullptr && tracker->active()) {
      tracker->Released(ptr, static_cast<int64_t>(next()->RequestedSize(ptr)));
    }
    next()->DeallocateRaw(ptr);
  }

 private:
  HazardTracker* tracker() const { return tracker_.load(std::memory_order_acquire); }

  std::atomic<HazardTracker*> tracker_{nullptr};
};

}  // namespace tfswap

#endif  // TFSWAP_CC_GPU_HAZARD_ALLOCATOR_H_
