#ifndef TFSWAP_CC_CODECS_CODEC_PATH_H_
#define TFSWAP_CC_CODECS_CODEC_PATH_H_

#include <string_view>

#include "codecs/bfp_kernels.h"
#include "codecs/word_kernels.h"

namespace tfswap {

// Which instructions the codecs' inner loops are written in changes their speed, never a byte of
// what they write. In use are "avx512", "avx2" or "portable"; from the start, the best there are.
const char* CodecPath();
const char* BestCodecPath();
// For tests. False: there is no such path on this machine.
bool SetCodecPath(std::string_view name);

// Those in use; for words of so many bytes: 2, else 4.
const WordKernels& KernelsFor(int element_bytes);
const BfpKernels& KernelsForBfp();

}  // namespace tfswap

#endif  // TFSWAP_CC_CODECS_CODEC_PATH_H_
