#include "grappler/index/tensor_bytes.h"

#include "tensorflow/core/framework/types.h"

namespace tfswap {

int64_t TensorBytes(const tensorflow::OpInfo::TensorProperties& tensor) {
  int64_t bytes = tensorflow::DataTypeSize(tensorflow::BaseType(tensor.dtype()));
  if (bytes == 0) return 0;
  if (tensor.shape().unknown_rank()) return -1;
  for (const auto& dim : tensor.shape().dim()) {
    if (dim.size() < 0) return -1;
    bytes *= dim.size();
  }
  return bytes;
}

}  // namespace tfswap
