#include "codecs/bfp_kernels.h"

#if defined(__x86_64__)

#include <immintrin.h>

#define TFSWAP_BFP_TARGET __attribute__((target("avx2")))

namespace tfswap {
namespace {

constexpr int kRegisterBytes = 32;

TFSWAP_BFP_TARGET inline void StorePastCache(char* to, const void* from) {
  _mm256_stream_si256(reinterpret_cast<__m256i*>(to),
                      _mm256_loadu_si256(static_cast<const __m256i*>(from)));
}

inline void EndPastCache() { _mm_sfence(); }

}  // namespace
}  // namespace tfswap

#include "codecs/bfp_loops.h"

const tfswap::BfpKernels* tfswap::Avx2BfpKernels() { return &kBfpKernels; }

#else

const tfswap::BfpKernels* tfswap::Avx2BfpKernels() { return nullptr; }

#endif
