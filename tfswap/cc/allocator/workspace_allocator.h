#ifndef TFSWAP_CC_ALLOCATOR_WORKSPACE_ALLOCATOR_H_
#define TFSWAP_CC_ALLOCATOR_WORKSPACE_ALLOCATOR_H_

#include <atomic>
#include <cstdint>

#include "allocator/adaptor.h"

namespace tfswap {

// Declines workspaces above a limit. A workspace is memory that a kernel can do without by using
// another algorithm. For cuDNN's convolutions the limit thus selects the algorithm (vDNN's "m" and
// "p").
class WorkspaceAllocator : public Adaptor {
 public:
  explicit WorkspaceAllocator(tensorflow::Allocator* next) : Adaptor(next) {}

  using Adaptor::AllocateRaw;
  void* AllocateRaw(size_t alignment, size_t num_bytes,
                    const tensorflow::AllocationAttributes& attributes) override {
    if (!attributes.retry_on_failure) {
      const int64_t limit = limit_.load(std::memory_order_relaxed);
      if (limit >= 0 && static_cast<int64_t>(num_bytes) > limit) return nullptr;
    }
    return next()->AllocateRaw(alignment, num_bytes, attributes);
  }

  // Set the limit; a negative one removes it.
  void SetLimit(int64_t bytes) { limit_.store(bytes); }

 private:
  std::atomic<int64_t> limit_{-1};
};

}  // namespace tfswap

#endif  // TFSWAP_CC_ALLOCATOR_WORKSPACE_ALLOCATOR_H_
