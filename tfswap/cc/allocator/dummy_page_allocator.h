#ifndef TFSWAP_CC_ALLOCATOR_DUMMY_PAGE_ALLOCATOR_H_
#define TFSWAP_CC_ALLOCATOR_DUMMY_PAGE_ALLOCATOR_H_

#include <atomic>
#include <mutex>
#include <unordered_map>

#include "allocator/adaptor.h"

namespace tfswap {

// Keeps kernels alive that crash where there is no memory (KernelScope::crashes): they get
// addresses behind which there is next to nothing, the same few pages over and over, and their
// device fails the op when they are through. What they wrote is rubbish that nobody reads.
//
// TensorFlow's oneDNN convolutions are such: they go on with an output that they could not
// allocate.
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
  // The bytes asked for, 0 if it is none of ours.
  size_t SizeOf(const void* ptr) const;

  std::atomic<int> alive_{0};
  mutable std::mutex mu_;
  std::unordered_map<const void*, size_t> blocks_;
};

}  // namespace tfswap

#endif  // TFSWAP_CC_ALLOCATOR_DUMMY_PAGE_ALLOCATOR_H_
