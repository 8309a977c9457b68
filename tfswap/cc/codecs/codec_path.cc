#include "codecs/codec_path.h"

#include <atomic>

namespace tfswap {
namespace {

struct Path {
  const char* name;
  const WordKernels* (*kernels)(int element_bytes);
  const BfpKernels* (*bfp)();
};

constexpr Path kPaths[] = {{"avx512", &Avx512Kernels, &Avx512BfpKernels},
                           {"avx2", &Avx2Kernels, &Avx2BfpKernels},
                           {"portable", &PortableKernels, &PortableBfpKernels}};

// 4-byte words decide: some machines have AVX-512 for them but not for 2-byte words. Block floating
// point needs the same instructions.
const Path* BestPath() {
  static const Path* const best = [] {
    const Path* path = kPaths;
    while (path->kernels(4) == nullptr) ++path;
    return path;
  }();
  return best;
}

std::atomic<const Path*>& ChosenPath() {
  static std::atomic<const Path*> chosen(BestPath());
  return chosen;
}

}  // namespace

const char* CodecPath() { return ChosenPath().load()->name; }

const char* BestCodecPath() { return BestPath()->name; }

bool SetCodecPath(std::string_view name) {
  for (const Path& path : kPaths) {
    if (name != path.name || path.kernels(4) == nullptr) continue;
    ChosenPath() = &path;
    return true;
  }
  return false;
}

const WordKernels& KernelsFor(int element_bytes) {
  const Path* path = ChosenPath().load(std::memory_order_relaxed);
  const int word_bytes = element_bytes == 2 ? 2 : 4;
  while (path->kernels(word_bytes) == nullptr) ++path;
  return *path->kernels(word_bytes);
}

const BfpKernels& KernelsForBfp() { return *ChosenPath().load(std::memory_order_relaxed)->bfp(); }

}  // namespace tfswap
