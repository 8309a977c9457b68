#ifndef TFSWAP_CC_BINDINGS_CODEC_BINDINGS_H_
#define TFSWAP_CC_BINDINGS_CODEC_BINDINGS_H_

#include <pybind11/pybind11.h>

namespace tfswap {

// Codecs: of buffers, of single sections for tests, and how fast they are.
void BindCodecs(pybind11::module_& module);

}  // namespace tfswap

#endif  // TFSWAP_CC_BINDINGS_CODEC_BINDINGS_H_
