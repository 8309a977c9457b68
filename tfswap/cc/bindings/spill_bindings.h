#ifndef TFSWAP_CC_BINDINGS_SPILL_BINDINGS_H_
#define TFSWAP_CC_BINDINGS_SPILL_BINDINGS_H_

#include <pybind11/pybind11.h>

namespace tfswap {

// SpillFile, so that tests can write and read it, and what a machine's description needs of it.
void BindSpill(pybind11::module_& module);

}  // namespace tfswap

#endif  // TFSWAP_CC_BINDINGS_SPILL_BINDINGS_H_
