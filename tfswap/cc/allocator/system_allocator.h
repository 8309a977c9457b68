#ifndef TFSWAP_CC_ALLOCATOR_SYSTEM_ALLOCATOR_H_
#define TFSWAP_CC_ALLOCATOR_SYSTEM_ALLOCATOR_H_

#include <cstddef>
#include <string>

#include "tensorflow/core/framework/allocator.h"

namespace tfswap {

// Host memory: large blocks in pages of their own (page_blocks.h), small ones from malloc. The last
// of a chain. TensorFlow's own CPU allocator is no base for it: on processors with VNNI it is
// oneDNN's, a pool that keeps what is freed. Knows the size of each block by a header in front:
//
//   | padding | header | bytes asked for ... |
//                      ^ aligned as asked
class SystemAllocator : public tensorflow::Allocator {
 public:
  explicit SystemAllocator(std::string name) : name_(std::move(name)) {}

  std::string Name() override { return name_; }
  void* AllocateRaw(size_t alignment, size_t num_bytes) override;
  void DeallocateRaw(void* ptr) override;
  bool TracksAllocationSizes() const override { return true; }
  // As far as it is paid for and was not given back.
  size_t RequestedSize(const void* ptr) const override;
  tensorflow::AllocatorMemoryType GetMemoryType() const override {
    return tensorflow::AllocatorMemoryType::kHostPageable;
  }

  // Gives back what is behind the first bytes of a block; answers how much. Small blocks stay.
  int64_t ReleaseEnd(void* ptr, int64_t kept_bytes);
  // Of a block that paid for its beginning only (KernelScope::pays): what it has to pay before its
  // first `bytes` bytes may be used, and that it has.
  int64_t Unpaid(const void* ptr, int64_t bytes) const;
  void Paid(void* ptr, int64_t bytes);

 private:
  const std::string name_;
};

}  // namespace tfswap

#endif  // TFSWAP_CC_ALLOCATOR_SYSTEM_ALLOCATOR_H_
