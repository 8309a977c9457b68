// tfswap's kernels, compiled for the CPU, by name.

#include <tuple>
#include <utility>

#include "cuda/codec_kernels.cu"
#include "simt.h"

namespace simt {

namespace {

template <typename... Arguments, size_t... kIndex>
std::function<void()> Bound(void (*kernel)(Arguments...), void** arguments,
                            std::index_sequence<kIndex...>) {
  const std::tuple<Arguments...> values(*static_cast<Arguments*>(arguments[kIndex])...);
  return [kernel, values] { std::apply(kernel, values); };
}

template <typename... Arguments>
std::function<void()> Bind(void (*kernel)(Arguments...), void** arguments) {
  return Bound(kernel, arguments, std::index_sequence_for<Arguments...>());
}

#define KERNEL(name) {#name, [](void** arguments) { return Bind(name, arguments); }}
#define CODEC(name)                                                     \
  KERNEL(tfswap_encode_##name##_32), KERNEL(tfswap_encode_##name##_16), \
      KERNEL(tfswap_decode_##name##_32), KERNEL(tfswap_decode_##name##_16)

const Kernel kKernels[] = {CODEC(zvc),
                           CODEC(rle),
                           CODEC(csr),
                           KERNEL(tfswap_count_zeros_32),
                           KERNEL(tfswap_count_zeros_16),
                           KERNEL(tfswap_lay_batch),
                           KERNEL(tfswap_pack_batch),
                           KERNEL(tfswap_unpack_batch),
                           KERNEL(tfswap_check_batch),
                           KERNEL(tfswap_weigh_batch)};

}  // namespace

const Kernel* Find(const char* name) {
  for (const Kernel& kernel : kKernels) {
    if (std::strcmp(kernel.name, name) == 0) return &kernel;
  }
  return nullptr;
}

const Kernel* IfKernel(const void* address) {
  for (const Kernel& kernel : kKernels) {
    if (&kernel == address) return &kernel;
  }
  return nullptr;
}

size_t VariableBytes(const char* name) {
  return std::strcmp(name, "tfswap_codec_tallies") == 0 ? sizeof(tfswap_codec_tallies) : 0;
}

}  // namespace simt
