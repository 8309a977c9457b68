#ifndef TFSWAP_CC_GRAPPLER_INDEX_TENSOR_BYTES_H_
#define TFSWAP_CC_GRAPPLER_INDEX_TENSOR_BYTES_H_

#include <cstdint>

#include "tensorflow/core/grappler/costs/op_performance_data.pb.h"

namespace tfswap {

// What a tensor takes by its inferred shape: -1 where that is not known, 0 for resources and the
// like, which are held elsewhere.
int64_t TensorBytes(const tensorflow::OpInfo::TensorProperties& tensor);

}  // namespace tfswap

#endif  // TFSWAP_CC_GRAPPLER_INDEX_TENSOR_BYTES_H_
