#include "kernels/gpu_codecs.h"

#include <atomic>

namespace tfswap {

namespace {

std::atomic<MakeGpuCodecs> registered{nullptr};

}  // namespace

void RegisterGpuCodecs(MakeGpuCodecs make) { registered.store(make); }

MakeGpuCodecs RegisteredGpuCodecs() { return registered.load(); }

}  // namespace tfswap
