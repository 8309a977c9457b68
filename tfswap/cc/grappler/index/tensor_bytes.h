#ifndef TFSWAP_CC_GRAPPLER_INDEX_TENSOR_BYTES_H_
#define TFSWAP_CC_GRAPPLER_INDEX_TENSOR_BYTES_H_

#include <cstdint>

#include "tensorflow/core/grappler/costs/op_performance_data.pb.h"

namespace tfswap {

// Return the bytes of a tensor of this inferred shape: -1 if the shape is unknown, 0 for resources
// and the like, whose memory is owned elsewhere.
int64_t TensorBytes(const tensorflow::OpInfo::TensorProperties& tensor);

}  // namespace tfswap

#endif  // TFSWAP_CC_GRAPPLER_INDEX_TENSOR_BYTES_H_
