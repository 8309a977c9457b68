// A simulated cuDNN: convolutions of float32 by cuDNN's backend API, the part of it that TensorFlow
// uses. All other operations and types are "not supported".
//
// A convolution makes its result in its workspace, and then copies it, so that a workspace that is
// used again too early shows as wrong bytes.

#include <cudnn_graph.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "fake_cuda.h"

struct cudnnContext {
  cudaStream_t stream = nullptr;
};

namespace {

struct Descriptor;

struct Values {
  cudnnBackendAttributeType_t type;
  int64_t count = 0;
  std::vector<char> bytes;
  std::vector<std::shared_ptr<Descriptor>> descriptors;  // instead, if they are of that type
};

struct Descriptor {
  cudnnBackendDescriptorType_t type;
  std::map<int, Values> attributes;
};

// What a cudnnBackendDescriptor_t points to. A descriptor lives as long as others need it.
struct Handle {
  std::shared_ptr<Descriptor> is;
};

size_t SizeOf(cudnnBackendAttributeType_t type) {
  switch (type) {
    case CUDNN_TYPE_BOOLEAN:
    case CUDNN_TYPE_CHAR:
      return 1;
    case CUDNN_TYPE_HANDLE:
    case CUDNN_TYPE_INT64:
    case CUDNN_TYPE_DOUBLE:
    case CUDNN_TYPE_VOID_PTR:
      return 8;
    default:  // enumerations and float
      return 4;
  }
}

template <typename T>
std::vector<T> Get(const Descriptor& descriptor, int name) {
  const auto it = descriptor.attributes.find(name);
  if (it == descriptor.attributes.end()) return {};
  const std::vector<char>& bytes = it->second.bytes;
  std::vector<T> values(bytes.size() / sizeof(T));
  std::memcpy(values.data(), bytes.data(), values.size() * sizeof(T));
  return values;
}

std::shared_ptr<Descriptor> Inner(const Descriptor& descriptor, int name) {
  const auto it = descriptor.attributes.find(name);
  if (it == descriptor.attributes.end() || it->second.descriptors.size() != 1) return nullptr;
  return it->second.descriptors[0];
}

void Put(Descriptor* descriptor, int name, int64_t value) {
  Values values{CUDNN_TYPE_INT64, 1};
  values.bytes.assign(reinterpret_cast<char*>(&value), reinterpret_cast<char*>(&value + 1));
  descriptor->attributes[name] = values;
}

void Put(Descriptor* descriptor, int name, std::shared_ptr<Descriptor> value) {
  descriptor->attributes[name] = {CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, {}, {std::move(value)}};
}

struct Tensor {
  int64_t uid;
  std::array<int64_t, 5> size;  // with three spatial dimensions, of which the first may be 1
  std::array<int64_t, 5> stride;

  int64_t elements() const { return size[0] * size[1] * size[2] * size[3] * size[4]; }
};

// The tensors of a convolution, in the order of cuDNN's attributes.
enum { kFilter, kInput, kOutput };

struct Convolution {
  int result;                     // which of the tensors, or its gradient, is computed
  std::array<Tensor, 3> tensors;  // or their gradients
  std::array<int64_t, 3> padding, stride, dilation;
  float alpha, beta;

  int64_t result_elements() const { return tensors[result].elements(); }
  int64_t workspace_bytes() const {
    constexpr int64_t kStep = 64 << 10;
    return (result_elements() * sizeof(float) + kStep - 1) / kStep * kStep;
  }
};

// Return such values as for three spatial dimensions.
template <size_t size>
std::array<int64_t, size> Extended(const std::vector<int64_t>& values, int64_t missing) {
  std::array<int64_t, size> all;
  all.fill(missing);
  std::copy_n(values.begin(), size - 3, all.begin());
  std::copy_backward(values.begin() + (size - 3), values.end(), all.end());
  return all;
}

std::optional<Tensor> TensorOf(const std::shared_ptr<Descriptor>& from) {
  if (from == nullptr) return std::nullopt;
  const auto size = Get<int64_t>(*from, CUDNN_ATTR_TENSOR_DIMENSIONS);
  const auto stride = Get<int64_t>(*from, CUDNN_ATTR_TENSOR_STRIDES);
  const auto uid = Get<int64_t>(*from, CUDNN_ATTR_TENSOR_UNIQUE_ID);
  const auto type = Get<cudnnDataType_t>(*from, CUDNN_ATTR_TENSOR_DATA_TYPE);
  if (size.size() < 3 || size.size() > 5 || stride.size() != size.size() || uid.size() != 1 ||
      type != std::vector{CUDNN_DATA_FLOAT}) {
    return std::nullopt;
  }
  const Tensor tensor{uid[0], Extended<5>(size, 1), Extended<5>(stride, 0)};
  int64_t last = 0;
  for (int i = 0; i < 5; ++i) last += (tensor.size[i] - 1) * tensor.stride[i];
  if (last + 1 != tensor.elements()) return std::nullopt;  // it has gaps
  return tensor;
}

// The operations, the first attribute of each (alpha; then beta, description, tensors), its result.
constexpr std::tuple<cudnnBackendDescriptorType_t, int, int> kOperations[] = {
    {CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
     CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA, kOutput},
    {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA, kInput},
    {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA, kFilter}};

// Return the convolution that is the only operation of a graph.
std::optional<Convolution> ConvolutionOf(const Descriptor& graph) {
  const auto operation = Inner(graph, CUDNN_ATTR_OPERATIONGRAPH_OPS);
  if (operation == nullptr) return std::nullopt;
  Convolution made{-1};
  int first = 0;
  for (const auto& [type, alpha, result] : kOperations) {
    if (type == operation->type) std::tie(made.result, first) = std::tie(result, alpha);
  }
  if (made.result < 0) return std::nullopt;
  for (int i : {kFilter, kInput, kOutput}) {
    const auto tensor = TensorOf(Inner(*operation, first + 3 + i));
    if (!tensor) return std::nullopt;
    made.tensors[i] = *tensor;
  }
  const auto how = Inner(*operation, first + 2);
  if (how == nullptr || Get<cudnnConvolutionMode_t>(*how, CUDNN_ATTR_CONVOLUTION_CONV_MODE) !=
                            std::vector{CUDNN_CROSS_CORRELATION}) {
    return std::nullopt;
  }
  made.padding = Extended<3>(Get<int64_t>(*how, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS), 0);
  made.stride = Extended<3>(Get<int64_t>(*how, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES), 1);
  made.dilation = Extended<3>(Get<int64_t>(*how, CUDNN_ATTR_CONVOLUTION_DILATIONS), 1);
  const auto scale = [&](int name) {
    return operation->attributes[name].type == CUDNN_TYPE_FLOAT
               ? Get<float>(*operation, name).at(0)
               : static_cast<float>(Get<double>(*operation, name).at(0));
  };
  made.alpha = scale(first);
  made.beta = scale(first + 1);
  return made;
}

std::optional<Convolution> ConvolutionOfPlan(const Descriptor& plan) {
  auto inner = Inner(plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG);
  if (inner != nullptr) inner = Inner(*inner, CUDNN_ATTR_ENGINECFG_ENGINE);
  if (inner != nullptr) inner = Inner(*inner, CUDNN_ATTR_ENGINE_OPERATION_GRAPH);
  return inner == nullptr ? std::nullopt : ConvolutionOf(*inner);
}

using Pointers = std::array<float*, 3>;

// Add the products of two of the tensors to the third, over spatial dimensions from this one on.
void AddProducts(const Convolution& of, int dimension, const Pointers& at) {
  if (dimension == 5) {
    *at[of.result] += *at[(of.result + 1) % 3] * *at[(of.result + 2) % 3];
    return;
  }
  const auto& [filter, input, output] = of.tensors;
  const int i = dimension - 2;
  for (int64_t f = 0; f < filter.size[dimension]; ++f) {
    for (int64_t y = 0; y < output.size[dimension]; ++y) {
      const int64_t x = y * of.stride[i] + f * of.dilation[i] - of.padding[i];
      if (x < 0 || x >= input.size[dimension]) continue;
      AddProducts(
          of, dimension + 1,
          {at[kFilter] + f * filter.stride[dimension], at[kInput] + x * input.stride[dimension],
           at[kOutput] + y * output.stride[dimension]});
    }
  }
}

void Compute(const Convolution& of, Pointers at, float* workspace) {
  const int64_t count = of.result_elements();
  float* const result = std::exchange(at[of.result], workspace);
  std::fill_n(workspace, count, 0.0f);
  const auto& [filter, input, output] = of.tensors;
  const int64_t filters_a_group = filter.size[0] / (input.size[1] / filter.size[1]);
  for (int64_t n = 0; n < output.size[0]; ++n) {
    for (int64_t k = 0; k < filter.size[0]; ++k) {
      for (int64_t c = 0; c < filter.size[1]; ++c) {
        const int64_t channel = k / filters_a_group * filter.size[1] + c;
        AddProducts(of, 2,
                    {at[kFilter] + k * filter.stride[0] + c * filter.stride[1],
                     at[kInput] + n * input.stride[0] + channel * input.stride[1],
                     at[kOutput] + n * output.stride[0] + k * output.stride[1]});
      }
    }
  }
  std::this_thread::sleep_for(std::chrono::microseconds(50));
  for (int64_t i = 0; i < count; ++i) {
    result[i] = of.alpha * workspace[i] + (of.beta == 0 ? 0 : of.beta * result[i]);
  }
}

std::atomic<int64_t> workspace_bytes{0};

}  // namespace

extern "C" {

// For tests: the bytes of all workspaces that convolutions had.
int64_t fake_cudnn_workspace_bytes() { return workspace_bytes.load(); }

size_t cudnnGetVersion() { return 91000; }
size_t cudnnGetCudartVersion() { return 12050; }
cudnnStatus_t cudnnGetProperty(libraryPropertyType type, int* value) {
  *value = type == MAJOR_VERSION ? 9 : type == MINOR_VERSION ? 10 : 0;
  return CUDNN_STATUS_SUCCESS;
}
const char* cudnnGetErrorString(cudnnStatus_t status) {
  return status == CUDNN_STATUS_NOT_SUPPORTED ? "the fake GPU does not compute that"
                                              : "an error of the fake GPU";
}
void cudnnGetLastErrorString(char* message, size_t size) {
  if (size > 0) *message = 0;
}
cudnnStatus_t cudnnCreate(cudnnHandle_t* handle) {
  return *handle = new cudnnContext(), CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnDestroy(cudnnHandle_t handle) { return delete handle, CUDNN_STATUS_SUCCESS; }
cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream) {
  return handle->stream = stream, CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type,
                                           cudnnBackendDescriptor_t* descriptor) {
  *descriptor = new Handle{std::make_shared<Descriptor>(Descriptor{type})};
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t descriptor) {
  delete static_cast<Handle*>(descriptor);
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t descriptor,
                                       cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t count,
                                       const void* elements) {
  Values values{type, count};
  if (type == CUDNN_TYPE_BACKEND_DESCRIPTOR) {
    const auto* handles = static_cast<Handle* const*>(elements);
    for (int64_t i = 0; i < count; ++i) values.descriptors.push_back(handles[i]->is);
  } else {
    const auto* bytes = static_cast<const char*>(elements);
    values.bytes.assign(bytes, bytes + count * SizeOf(type));
  }
  static_cast<Handle*>(descriptor)->is->attributes[name] = std::move(values);
  return CUDNN_STATUS_SUCCESS;
}

// Attributes that were not set (an engine's notes and knobs) have a count of 0.
cudnnStatus_t cudnnBackendGetAttribute(const cudnnBackendDescriptor_t descriptor,
                                       cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t most,
                                       int64_t* count, void* elements) {
  const auto& attributes = static_cast<Handle*>(descriptor)->is->attributes;
  const auto it = attributes.find(name);
  const Values none{type};
  const Values& values = it == attributes.end() ? none : it->second;
  if (values.type != type) return CUDNN_STATUS_BAD_PARAM;
  if (count != nullptr) *count = values.count;
  if (elements == nullptr) return CUDNN_STATUS_SUCCESS;
  most = std::min(most, values.count);
  if (type == CUDNN_TYPE_BACKEND_DESCRIPTOR) {
    auto* handles = static_cast<Handle**>(elements);
    for (int64_t i = 0; i < most; ++i) handles[i]->is = values.descriptors[i];
  } else {
    std::memcpy(elements, values.bytes.data(), most * SizeOf(type));
  }
  return CUDNN_STATUS_SUCCESS;
}

// There is one engine, which computes a graph that consists of one convolution.
cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t descriptor) {
  Descriptor& made = *static_cast<Handle*>(descriptor)->is;
  switch (made.type) {
    case CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR:
      if (!ConvolutionOf(made)) return CUDNN_STATUS_NOT_SUPPORTED;
      Put(&made, CUDNN_ATTR_OPERATIONGRAPH_ENGINE_GLOBAL_COUNT, 1);
      break;
    case CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR: {
      auto engine = std::make_shared<Descriptor>(Descriptor{CUDNN_BACKEND_ENGINE_DESCRIPTOR});
      Put(engine.get(), CUDNN_ATTR_ENGINE_OPERATION_GRAPH,
          Inner(made, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH));
      Put(engine.get(), CUDNN_ATTR_ENGINE_GLOBAL_INDEX, 0);
      auto config = std::make_shared<Descriptor>(Descriptor{CUDNN_BACKEND_ENGINECFG_DESCRIPTOR});
      Put(config.get(), CUDNN_ATTR_ENGINECFG_ENGINE, std::move(engine));
      Put(&made, CUDNN_ATTR_ENGINEHEUR_RESULTS, std::move(config));
      break;
    }
    case CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR: {
      const auto convolution = ConvolutionOfPlan(made);
      if (!convolution) return CUDNN_STATUS_NOT_SUPPORTED;
      Put(&made, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, convolution->workspace_bytes());
      break;
    }
    default:
      break;
  }
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan,
                                  cudnnBackendDescriptor_t pack) {
  const auto convolution = ConvolutionOfPlan(*static_cast<Handle*>(plan)->is);
  if (!convolution) return CUDNN_STATUS_NOT_SUPPORTED;
  const Descriptor& given = *static_cast<Handle*>(pack)->is;
  const auto uids = Get<int64_t>(given, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
  const auto pointers = Get<float*>(given, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);
  const auto workspace = Get<float*>(given, CUDNN_ATTR_VARIANT_PACK_WORKSPACE);
  if (uids.size() != pointers.size() || workspace.size() != 1 || workspace[0] == nullptr) {
    return CUDNN_STATUS_BAD_PARAM;
  }
  Pointers at;
  for (int i : {kFilter, kInput, kOutput}) {
    const auto found = std::find(uids.begin(), uids.end(), convolution->tensors[i].uid);
    if (found == uids.end()) return CUDNN_STATUS_BAD_PARAM;
    at[i] = pointers[found - uids.begin()];
  }
  workspace_bytes += convolution->workspace_bytes();
  fake_cuda::RunKernel(handle->stream,
                       [of = *convolution, at, with = workspace[0]] { Compute(of, at, with); });
  return CUDNN_STATUS_SUCCESS;
}

}  // extern "C"
