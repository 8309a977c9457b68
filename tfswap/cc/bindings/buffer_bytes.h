#ifndef TFSWAP_CC_BINDINGS_BUFFER_BYTES_H_
#define TFSWAP_CC_BINDINGS_BUFFER_BYTES_H_

#include <pybind11/pybind11.h>

#include <cstddef>
#include <stdexcept>
#include <utility>

namespace tfswap {

// Return the address and size of an array, which must be contiguous. It stays there as long as
// `info` lives.
inline std::pair<char*, size_t> BytesOf(const pybind11::buffer_info& info) {
  pybind11::ssize_t stride = info.itemsize;
  for (pybind11::ssize_t i = info.ndim; i-- > 0; stride *= info.shape[i]) {
    if (info.shape[i] != 1 && info.strides[i] != stride) {
      throw std::invalid_argument("data that is contiguous in memory is needed");
    }
  }
  return {static_cast<char*>(info.ptr), static_cast<size_t>(info.size * info.itemsize)};
}

}  // namespace tfswap

#endif  // TFSWAP_CC_BINDINGS_BUFFER_BYTES_H_
