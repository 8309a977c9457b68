#ifndef TFSWAP_DEVICE_KERNEL_SCOPE_H_
#define TFSWAP_DEVICE_KERNEL_SCOPE_H_

#include <cstdint>
#include <functional>

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
  tensorflow::OpKernelContext* const context;
  int64_t wait_ns = 0;  // spent waiting for memory
  // Asked while waiting for memory: has something come up that should go first? If so, the
  // allocation fails and `gave_way` says why.
  std::function<bool()> give_way;
  bool gave_way = false;
  KernelScope* const outer;

  static thread_local KernelScope* current;
};

}  // namespace tfswap

#endif  // TFSWAP_DEVICE_KERNEL_SCOPE_H_
