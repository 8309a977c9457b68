#ifndef TFSWAP_CC_BINDINGS_PACKING_BINDINGS_H_
#define TFSWAP_CC_BINDINGS_PACKING_BINDINGS_H_

#include <pybind11/pybind11.h>

namespace tfswap {

void BindPacking(pybind11::module_& module);

}  // namespace tfswap

#endif  // TFSWAP_CC_BINDINGS_PACKING_BINDINGS_H_
