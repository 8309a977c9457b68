// Runs the kernels under ThreadSanitizer, which sees each CUDA thread as a thread. Blocks run on
// several host threads, and only barriers and atomic functions order accesses. Exits with 0 if
// there is no race and all bytes are equal.
//
//     race_check CODEC BITS

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "cuda/codec_format.h"
#include "simt.h"

namespace {

template <typename... Arguments>
void Run(const std::string& name, uint32_t blocks, uint32_t threads, uint32_t seed,
         Arguments... arguments) {
  const simt::Kernel* kernel = simt::Find(name.c_str());
  if (kernel == nullptr) std::exit(3);
  void* pointers[] = {&arguments...};
  simt::Launch(kernel->bind(pointers), blocks, threads, seed, /*host_threads=*/2);
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 3) return 3;
  const std::string codec = arguments[1], bits = arguments[2];
  const size_t words_a_word = bits == "32" ? 2 : 1;  // of 16 bits
  // Sections that shrink, one of zeros, one that does not shrink, and a remainder.
  std::vector<uint16_t> source(5 * tfswap::gpu_codec::kSectionBytes / 2 + 2 * 77);
  std::mt19937 dice(1);
  for (size_t i = 0; i < source.size(); i += words_a_word) {
    const size_t section = i * 2 / tfswap::gpu_codec::kSectionBytes;
    const bool zero = section == 1 || (section != 2 && dice() % 5 < (i / 1000 % 2 == 0 ? 4 : 1));
    for (size_t j = 0; j < words_a_word; ++j) source[i + j] = zero ? 0 : dice() % 65535 + 1;
  }
  const uint64_t bytes = source.size() * 2;
  // Whole units, so that they are aligned to units.
  std::vector<uint64_t> from((bytes + 15) / 16 * 2), to(from.size());
  std::memcpy(from.data(), source.data(), bytes);
  for (uint32_t seed = 1; seed <= 12; ++seed) {
    const uint32_t blocks = 1 + seed % 4, threads = 32 * (1 + seed % 3);
    void* far_block = nullptr;
    if (posix_memalign(&far_block, 128, tfswap::gpu_codec::MaxFarBytes(bytes)) != 0) return 3;
    tfswap::gpu_codec::Tally tally = {};
    tfswap::gpu_codec::ZeroCount zeros = {};
    Run("tfswap_encode_" + codec + "_" + bits, blocks, threads, seed, from.data(), bytes, far_block,
        &tally, static_cast<uint64_t*>(nullptr));
    Run("tfswap_decode_" + codec + "_" + bits, blocks + 1, threads, seed, far_block, bytes,
        to.data());
    if (std::memcmp(to.data(), from.data(), bytes) != 0) {
      std::fprintf(stderr, "other bytes came back\n");
      return 1;
    }
    Run("tfswap_count_zeros_" + bits, blocks, threads, seed, from.data(), bytes, 1u, &zeros,
        &tally);
    if (zeros.zero_words != static_cast<tfswap::gpu_codec::FarHeader*>(far_block)->zero_words ||
        zeros.words != bytes / (2 * words_a_word)) {
      std::fprintf(stderr, "other zeros were counted\n");
      return 1;
    }
    std::free(far_block);
  }
  return 0;
}
