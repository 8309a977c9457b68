#ifndef TFSWAP_CC_ALLOCATOR_ADAPTOR_H_
#define TFSWAP_CC_ALLOCATOR_ADAPTOR_H_

#include "tensorflow/core/framework/allocator.h"

namespace tfswap {

// An allocator that adds one thing to another one, in the manner of rmm's adaptors. Each works over
// any other that tracks sizes, so they may be put together in any order:
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

// One that knows the sizes of blocks which the next allocator does not have.
class SizedAdaptor : public Adaptor {
 public:
  using Adaptor::Adaptor;

  bool TracksAllocationSizes() const final { return true; }
  size_t RequestedSize(const void* ptr) const override = 0;
  size_t AllocatedSize(const void* ptr) const final { return RequestedSize(ptr); }
};

}  // namespace tfswap

#endif  // TFSWAP_CC_ALLOCATOR_ADAPTOR_H_
