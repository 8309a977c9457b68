#ifndef TFSWAP_BINDINGS_HAZARD_BINDINGS_H_
#define TFSWAP_BINDINGS_HAZARD_BINDINGS_H_

#include <pybind11/pybind11.h>

namespace tfswap {

// Card and HazardTracker, so that tests can run the tracker over a card of their own.
void BindHazards(pybind11::module_& module);

}  // namespace tfswap

#endif  // TFSWAP_BINDINGS_HAZARD_BINDINGS_H_
