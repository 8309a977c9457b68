#ifndef TFSWAP_CC_ALLOCATOR_KERNEL_SCOPE_H_
#define TFSWAP_CC_ALLOCATOR_KERNEL_SCOPE_H_

#include <cstdint>
#include <functional>
#include <string>

#include "allocator/slab_layouts.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tfswap {

class XlaLaunch;

// What this thread is running, for allocators, recorders and error messages. Each kernel runs
// inside one on the stack, and copy threads create one for each swap-in.
struct KernelScope {
  enum class Role { kKernel, kSwapIn };
  // What an allocation may do for memory that is not free: wait for it; or, at once, evict; release
  // other idle memory, whose next user has to get new pages then; nothing.
  enum class Effort { kWait, kEvict, kTakeIdle, kTakeFree };

  KernelScope(Role role, tensorflow::OpKernelContext* context)
      : role(role), context(context), outer(current) {
    current = this;
  }
  ~KernelScope() { current = outer; }
  KernelScope(const KernelScope&) = delete;
  KernelScope& operator=(const KernelScope&) = delete;

  const Role role;
  tensorflow::OpKernelContext* const context;  // null in tests
  int64_t wait_ns = 0;                         // spent waiting for memory
  // The planned addresses of the op's allocations, and how many allocations of each kind it has
  // made in this run.
  PlannedOpRef planned;
  uint32_t made[kBufferKinds] = {};
  // Called while waiting for memory. If it returns true, something else should go first: the
  // allocation fails and `gave_way` is set.
  std::function<bool()> give_way;
  bool gave_way = false;
  // With less than kWait, the allocation fails (`gave_way`) instead of waiting: this thread would
  // have to free the memory itself, or can do without.
  Effort effort = Effort::kWait;
  // Charge only so many bytes of a larger block at first; 0: all. DeviceAllocator::Pay() charges
  // the rest.
  int64_t pays = 0;
  // The kernel crashes if it gets no memory. See dummy_page_allocator.h, which sets `failure`.
  bool crashes = false;
  std::string failure;
  // The run of a compiled function, which sees what this thread frees; null for other ops.
  XlaLaunch* xla = nullptr;
  KernelScope* const outer;

  static thread_local KernelScope* current;

  // Return the bytes that are charged at first for this thread's allocation of `bytes` bytes.
  static int64_t PaysFor(int64_t bytes) {
    const int64_t pays = current == nullptr ? 0 : current->pays;
    return pays > 0 && pays < bytes ? pays : bytes;
  }
  // Return whether this thread's allocation may release other idle memory.
  static bool TakesIdle() { return current == nullptr || current->effort != Effort::kTakeFree; }
};

}  // namespace tfswap

#endif  // TFSWAP_CC_ALLOCATOR_KERNEL_SCOPE_H_
