#ifndef TFSWAP_CC_KERNELS_PLACEMENT_REQUEST_ATTRIBUTES_H_
#define TFSWAP_CC_KERNELS_PLACEMENT_REQUEST_ATTRIBUTES_H_

#include "absl/status/status.h"
#include "far/far_memory.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tfswap {

// Where an op's attributes `tier`, `codec`, `rate` and `threads` want what it moves, which consists
// of `dtype`. Plans may come from anywhere: what they may not ask for is an error.
absl::Status ReadPlacementRequest(tensorflow::OpKernelConstruction* construction,
                                  tensorflow::DataType dtype, PlacementRequest* request);

}  // namespace tfswap

#endif  // TFSWAP_CC_KERNELS_PLACEMENT_REQUEST_ATTRIBUTES_H_
