#ifndef TFSWAP_CC_ALLOCATOR_ADAPTOR_H_
#define TFSWAP_CC_ALLOCATOR_ADAPTOR_H_

#include "tensorflow/core/framework/allocator.h"

namespace tfswap {

// An allocator that adds one feature to another allocator, like rmm's resource adaptors. Each works
// over any allocator that tracks sizes, so they can be combined in any order:
//
//   StatisticsAllocator > RecordingAllocator > SlabAllocator > BudgetAllocator > SystemAllocator
class Adaptor : public tensorflow::AllocatorWrapper {
 public:
  explicit Adaptor(tensorflow::Allocator* next) : AllocatorWrapper(next) {}

  void* AllocateRaw(size_t alignment, size_t num_bytes) final {
    return AllocateRaw(alignment, num_bytes, tensorflow::AllocationAttributes());
  }
  void* AllocateRaw(size_t alignment, size_t num_bytes,
                    const tensorflow::AllocationAttributes& attributes) override = 0;
  std::optional<tensorflow::AllocatorStats> GetStats() override { return next()->GetStats(); }
  bool ClearStats() override { return next()->ClearStats(); }
  void SetSafeFrontier(uint64_t count) override { next()->SetSafeFrontier(count); }
  void SetStreamAndPreallocateMemory(void* stream) override {
    next()->SetStreamAndPreallocateMemory(stream);
  }

 protected:
  tensorflow::Allocator* next() const { return wrapped(); }
};

// An adaptor with blocks of its own, whose sizes the next allocator does not know.
class SizedAdaptor : public Adaptor {
 public:
  using Adaptor::Adaptor;

  bool TracksAllocationSizes() const final { return true; }
  size_t RequestedSize(const void* ptr) const override = 0;
  size_t AllocatedSize(const void* ptr) const final { return RequestedSize(ptr); }
};

}  // namespace tfswap

#endif  // TFSWAP_CC_ALLOCATOR_ADAPTOR_H_
