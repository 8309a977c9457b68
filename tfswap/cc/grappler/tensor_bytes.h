#ifndef TFSWAP_GRAPPLER_TENSOR_BYTES_H_
#define TFSWAP_GRAPPLER_TENSOR_BYTES_H_

#include <cstdint>

#include "tensorflow/core/grappler/costs/op_performance_data.pb.h"

namespace tfswap {

// What a tensor takes by its inferred shape: -1 where that is not known, 0 for resources and the
// like, which are held elsewhere.
int64_t TensorBytes(const tensorflow::OpInfo::TensorProperties& tensor);

}  // namespace tfswap

#endif  // TFSWAP_GRAPPLER_TENSOR_BYTES_H_
