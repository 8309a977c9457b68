#ifndef TFSWAP_CC_BINDINGS_SPILL_BINDINGS_H_
#define TFSWAP_CC_BINDINGS_SPILL_BINDINGS_H_

#include <pybind11/pybind11.h>

namespace tfswap {

// Bind SpillFile for tests, and the measurement of its speed.
void BindSpill(pybind11::module_& module);

}  // namespace tfswap

#endif  // TFSWAP_CC_BINDINGS_SPILL_BINDINGS_H_
