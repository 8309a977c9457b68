#ifndef TFSWAP_CC_KERNELS_FAR_HANDLE_H_
#define TFSWAP_CC_KERNELS_FAR_HANDLE_H_

#include <algorithm>
#include <cstdint>
#include <string>

#include "kernels/copy_engine.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/variant_tensor_data.h"

namespace tfswap {

// The value of a handle: what a swap-out op makes and a swap-in op reads, in one step.
struct FarHandle {
  FarBufferPtr buffer;

  std::string TypeName() const { return "tfswap::FarHandle"; }
  void Encode(tensorflow::VariantTensorData*) const {}
  bool Decode(const tensorflow::VariantTensorData&) { return false; }
};

// Return the engine of the kernel's device; null, with an error status in the context, if tfswap
// does not manage the device.
CopyEngine* EngineOf(tensorflow::OpKernelContext* context);

// Return the place of an access in the step, by which evictions are ordered: the position of its
// op, and within it the iteration of the loop, or the element of a list.
//
// Args:
//   position: Of the op; 0: there is no such access, which is a place of 0, too.
//   order: 1: earlier iterations or elements come first; -1: later ones do.
inline int64_t PlaceOf(int64_t position, int64_t order, int64_t number) {
  constexpr int64_t kNumbers = int64_t{1} << 20;
  if (position == 0) return 0;
  return position * kNumbers + order * std::min(number, kNumbers / 2);
}

// The same for an op that runs now.
inline int64_t PlaceOf(int64_t position, int64_t order, tensorflow::OpKernelContext* context) {
  return PlaceOf(position, order, context->frame_iter().iter_id);
}

}  // namespace tfswap

#endif  // TFSWAP_CC_KERNELS_FAR_HANDLE_H_
