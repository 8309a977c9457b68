#ifndef TFSWAP_CC_ALLOCATOR_SYSTEM_ALLOCATOR_H_
#define TFSWAP_CC_ALLOCATOR_SYSTEM_ALLOCATOR_H_

#include <cstddef>
#include <string>

#include "tensorflow/core/framework/allocator.h"

namespace tfswap {

// Allocates host memory: large blocks in their own pages (page_blocks.h), small ones from malloc.
// It is the last of a chain. It does not use TensorFlow's CPU allocator, because that is oneDNN's
// on processors with VNNI, a pool that keeps freed memory. The size of a block is in a header:
//
//   | padding | header | requested bytes ... |
//                      ^ requested alignment
class SystemAllocator : public tensorflow::Allocator {
 public:
  explicit SystemAllocator(std::string name) : name_(std::move(name)) {}

  std::string Name() override { return name_; }
  void* AllocateRaw(size_t alignment, size_t num_bytes) override;
  void DeallocateRaw(void* ptr) override;
  bool TracksAllocationSizes() const override { return true; }
  // Return the bytes that are charged and not released.
  size_t RequestedSize(const void* ptr) const override;
  tensorflow::AllocatorMemoryType GetMemoryType() const override {
    return tensorflow::AllocatorMemoryType::kHostPageable;
  }

  // Release the end of a block, unless it is small. Return the released bytes.
  int64_t ReleaseEnd(void* ptr, int64_t kept_bytes);
  // For a block that is charged only in part (KernelScope::pays): return the bytes to charge before
  // its first `bytes` bytes may be used, and note that they are charged.
  int64_t Unpaid(const void* ptr, int64_t bytes) const;
  void Paid(void* ptr, int64_t bytes);

 private:
  const std::string name_;
};

}  // namespace tfswap

#endif  // TFSWAP_CC_ALLOCATOR_SYSTEM_ALLOCATOR_H_
