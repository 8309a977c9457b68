#ifndef TFSWAP_ALLOCATOR_SYSTEM_ALLOCATOR_H_
#define TFSWAP_ALLOCATOR_SYSTEM_ALLOCATOR_H_

#include <cstddef>
#include <string>

#include "tensorflow/core/framework/allocator.h"

namespace tfswap {

// Host memory: large blocks in pages of their own (page_blocks.h), small ones from TensorFlow's CPU
// allocator. The last of a chain. Knows the size of each block by a header in front of it:
//
//   | padding | header | bytes asked for ... |
//                      ^ aligned as asked
class SystemAllocator : public tensorflow::Allocator {
 public:
  SystemAllocator(std::string name, tensorflow::Allocator* small)
      : name_(std::move(name)), small_(small) {}

  std::string Name() override { return name_; }
  void* AllocateRaw(size_t alignment, size_t num_bytes) override;
  void DeallocateRaw(void* ptr) override;
  bool TracksAllocationSizes() const override { return true; }
  size_t RequestedSize(const void* ptr) const override;
  tensorflow::AllocatorMemoryType GetMemoryType() const override { return small_->GetMemoryType(); }

 private:
  const std::string name_;
  tensorflow::Allocator* const small_;
};

}  // namespace tfswap

#endif  // TFSWAP_ALLOCATOR_SYSTEM_ALLOCATOR_H_
