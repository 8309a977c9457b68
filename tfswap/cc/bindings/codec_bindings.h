#ifndef TFSWAP_CC_BINDINGS_CODEC_BINDINGS_H_
#define TFSWAP_CC_BINDINGS_CODEC_BINDINGS_H_

#include <pybind11/pybind11.h>

namespace tfswap {

// Bind the codecs for buffers, for single sections (in tests), and their speed measurement.
void BindCodecs(pybind11::module_& module);

}  // namespace tfswap

#endif  // TFSWAP_CC_BINDINGS_CODEC_BINDINGS_H_
