#ifndef TFSWAP_CC_CODECS_CODEC_PATH_H_
#define TFSWAP_CC_CODECS_CODEC_PATH_H_

#include <string_view>

#include "codecs/bfp_kernels.h"
#include "codecs/word_kernels.h"

namespace tfswap {

// The instruction set of the codecs' inner loops: "avx512", "avx2" or "portable", by default the
// best available. It affects the speed, not the encoded bytes.
const char* CodecPath();
const char* BestCodecPath();
// For tests. Return false if this machine has no such path.
bool SetCodecPath(std::string_view name);

// The active kernels, for words of 2 or else 4 bytes.
const WordKernels& KernelsFor(int element_bytes);
const BfpKernels& KernelsForBfp();

}  // namespace tfswap

#endif  // TFSWAP_CC_CODECS_CODEC_PATH_H_
