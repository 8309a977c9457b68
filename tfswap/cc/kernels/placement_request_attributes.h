#ifndef TFSWAP_CC_KERNELS_PLACEMENT_REQUEST_ATTRIBUTES_H_
#define TFSWAP_CC_KERNELS_PLACEMENT_REQUEST_ATTRIBUTES_H_

#include "absl/status/status.h"
#include "far/far_memory.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tfswap {

// Read the attributes `tier`, `codec`, `rate` and `threads` of an op that swaps tensors of `dtype`.
// Plans are untrusted input: invalid attributes are an error.
absl::Status ReadPlacementRequest(tensorflow::OpKernelConstruction* construction,
                                  tensorflow::DataType dtype, PlacementRequest* request);

}  // namespace tfswap

#endif  // TFSWAP_CC_KERNELS_PLACEMENT_REQUEST_ATTRIBUTES_H_
