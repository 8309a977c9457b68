#ifndef TFSWAP_CC_ALLOCATOR_KERNEL_SCOPE_H_
#define TFSWAP_CC_ALLOCATOR_KERNEL_SCOPE_H_

#include <cstdint>
#include <functional>
#include <string>

#include "allocator/slab_layouts.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tfswap {

// What this thread is running, for allocators, recorders and error texts. One lives on the stack
// around each kernel; copy threads make one for the swap-in that they serve.
struct KernelScope {
  enum class Role { kKernel, kSwapIn };

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
  // Where the op's allocations are planned to be, and how many of each kind it has made in this
  // run.
  PlannedOpRef planned;
  uint32_t made[kBufferKinds] = {};
  // Asked while waiting for memory: has something come up that should go first? If so, the
  // allocation fails and `gave_way` says why.
  std::function<bool()> give_way;
  bool gave_way = false;
  // Rather fail (`gave_way`) than wait: this thread is the one that would free what it waits for.
  bool now_or_never = false;
  // Of a larger block, only so much is to be paid for at first; 0: all. The rest is asked for with
  // DeviceAllocator::Pay().
  int64_t pays = 0;
  // It goes on, and crashes, where it gets no memory: what to give it, and what to say of it, is in
  // stand_in_allocator.h.
  bool crashes = false;
  std::string failure;
  KernelScope* const outer;

  static thread_local KernelScope* current;

  // What this thread's allocation of so many bytes pays for at first.
  static int64_t PaysFor(int64_t bytes) {
    const int64_t pays = current == nullptr ? 0 : current->pays;
    return pays > 0 && pays < bytes ? pays : bytes;
  }
};

}  // namespace tfswap

#endif  // TFSWAP_CC_ALLOCATOR_KERNEL_SCOPE_H_
