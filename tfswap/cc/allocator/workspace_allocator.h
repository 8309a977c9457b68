#ifndef TFSWAP_CC_ALLOCATOR_WORKSPACE_ALLOCATOR_H_
#define TFSWAP_CC_ALLOCATOR_WORKSPACE_ALLOCATOR_H_

#include <atomic>
#include <cstdint>

#include "allocator/adaptor.h"

namespace tfswap {

// Declines workspaces above a limit. A workspace is what a kernel can do without, in another way:
// cuDNN's convolutions, for which this chooses among their algorithms (vDNN's "m" and "p").
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

  // Below 0: none.
  void SetLimit(int64_t bytes) { limit_.store(bytes); }

 private:
  std::atomic<int64_t> limit_{-1};
};

}  // namespace tfswap

#endif  // TFSWAP_CC_ALLOCATOR_WORKSPACE_ALLOCATOR_H_
