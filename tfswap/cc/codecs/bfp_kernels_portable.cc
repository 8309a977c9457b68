#include <cstring>

#include "codecs/bfp_kernels.h"

#define TFSWAP_BFP_TARGET

namespace tfswap {
namespace {

// All supported processors have registers of this size.
constexpr int kRegisterBytes = 16;

inline void StorePastCache(char* to, const void* from) { std::memcpy(to, from, kRegisterBytes); }

inline void EndPastCache() {}

}  // namespace
}  // namespace tfswap

#include "codecs/bfp_loops.h"

const tfswap::BfpKernels* tfswap::PortableBfpKernels() { return &kBfpKernels; }
