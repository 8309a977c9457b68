#ifndef TFSWAP_CC_ALLOCATOR_DUMMY_PAGE_ALLOCATOR_H_
#define TFSWAP_CC_ALLOCATOR_DUMMY_PAGE_ALLOCATOR_H_

#include <atomic>
#include <mutex>
#include <unordered_map>

#include "allocator/adaptor.h"

namespace tfswap {

// Protects kernels that crash when an allocation fails (KernelScope::crashes). They get addresses
// that all map to the same few pages, and their device fails the op when they return. What they
// wrote is never read.
//
// TensorFlow's oneDNN convolutions need this: they continue with an output whose allocation failed.
class DummyPageAllocator : public SizedAdaptor {
 public:
  using SizedAdaptor::AllocateRaw;
  using SizedAdaptor::SizedAdaptor;
  void* AllocateRaw(size_t alignment, size_t num_bytes,
                    const tensorflow::AllocationAttributes& attributes) override;
  void DeallocateRaw(void* ptr) override;
  size_t RequestedSize(const void* ptr) const override;
  int64_t AllocationId(const void* ptr) const override;

 private:
  // Return the requested bytes; 0 if the block does not belong to this allocator.
  size_t SizeOf(const void* ptr) const;

  std::atomic<int> alive_{0};
  mutable std::mutex mu_;
  std::unordered_map<const void*, size_t> blocks_;
};

}  // namespace tfswap

#endif  // TFSWAP_CC_ALLOCATOR_DUMMY_PAGE_ALLOCATOR_H_
