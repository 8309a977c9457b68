#include "codecs/bfp_kernels.h"

#if defined(__x86_64__)

#include <immintrin.h>

#define TFSWAP_BFP_TARGET __attribute__((target("avx512f,avx512bw")))

namespace tfswap {
namespace {

constexpr int kRegisterBytes = 64;

TFSWAP_BFP_TARGET inline void StorePastCache(char* to, const void* from) {
  _mm512_stream_si512(reinterpret_cast<__m512i*>(to), _mm512_loadu_si512(from));
}

inline void EndPastCache() { _mm_sfence(); }

}  // namespace
}  // namespace tfswap

#include "codecs/bfp_loops.h"

const tfswap::BfpKernels* tfswap::Avx512BfpKernels() { return &kBfpKernels; }

#else

const tfswap::BfpKernels* tfswap::Avx512BfpKernels() { return nullptr; }

#endif
