#ifndef TFSWAP_CC_BINDINGS_GPU_BINDINGS_H_
#define TFSWAP_CC_BINDINGS_GPU_BINDINGS_H_

#include <pybind11/pybind11.h>

namespace tfswap {

// Bind Gpu and HazardTracker, so that tests can run the tracker with a GPU written in Python.
void BindGpu(pybind11::module_& module);

}  // namespace tfswap

#endif  // TFSWAP_CC_BINDINGS_GPU_BINDINGS_H_
