// The only kernel of TensorFlow that the simulated GPU computes: the one that permutes dimensions,
// with which TensorFlow converts filters to cuDNN's order and back.

#include <array>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <map>
#include <mutex>

#include "fake_cuda.h"

namespace {

// Dimension i of the input is dimension permutation[i] of the output.
using Three = std::array<int, 3>;

std::mutex mu;
std::map<const void*, Three>& permutations = *new std::map<const void*, Three>();

void Permute(const float* input, const Three& size, const Three& permutation, float* output) {
  Three output_size;
  for (int i = 0; i < 3; ++i) output_size[permutation[i]] = size[i];
  Three at;
  for (at[0] = 0; at[0] < size[0]; ++at[0]) {
    for (at[1] = 0; at[1] < size[1]; ++at[1]) {
      for (at[2] = 0; at[2] < size[2]; ++at[2]) {
        Three to;
        for (int i = 0; i < 3; ++i) to[permutation[i]] = at[i];
        output[(int64_t{to[0]} * output_size[1] + to[1]) * output_size[2] + to[2]] = *input++;
      }
    }
  }
}

}  // namespace

namespace fake_cuda {

std::function<void()> TensorFlowKernel(const void* kernel, void** arguments) {
  std::lock_guard<std::mutex> lock(mu);
  const auto it = permutations.find(kernel);
  if (it == permutations.end()) return nullptr;
  // The number of elements, the input, its size, the output.
  const auto* input = *static_cast<const float**>(arguments[1]);
  const auto size = *static_cast<const Three*>(arguments[2]);
  auto* output = *static_cast<float**>(arguments[3]);
  return [=, permutation = it->second] { Permute(input, size, permutation, output); };
}

}  // namespace fake_cuda

extern "C" {

// Called for each kernel when a library of TensorFlow is loaded.
void __cudaRegisterFunction(void**, const void* kernel, char*, const char* name) {
  const char* found = std::strstr(name, "ShuffleInTensor3SimpleIfLi");  // of float
  Three to;
  if (found == nullptr ||
      std::sscanf(found, "ShuffleInTensor3SimpleIfLi%dELi%dELi%dE", &to[0], &to[1], &to[2]) != 3) {
    return;
  }
  std::lock_guard<std::mutex> lock(mu);
  permutations[kernel] = to;
}

}  // extern "C"
