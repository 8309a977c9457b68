#include "allocator/variable_inputs.h"

#include <algorithm>
#include <cstring>
#include <typeinfo>
#include <unordered_set>
#include <utility>

#include "tensorflow/core/framework/resource_mgr.h"

namespace tfswap {

using ::tensorflow::OpKernel;
using ::tensorflow::OpKernelContext;
using ::tensorflow::ResourceHandle;
using ::tensorflow::Tensor;
using ::tensorflow::Var;

namespace {

// Return whether the op forwards variables without reading them.
bool PassesOn(absl::string_view op) {
  static const auto* ops = new std::unordered_set<absl::string_view>{"Case",
                                                                     "DestroyResourceOp",
                                                                     "Enter",
                                                                     "Exit",
                                                                     "Identity",
                                                                     "IdentityN",
                                                                     "If",
                                                                     "Merge",
                                                                     "NextIteration",
                                                                     "PartitionedCall",
                                                                     "RefSwitch",
                                                                     "RemoteCall",
                                                                     "StatefulPartitionedCall",
                                                                     "StatelessCase",
                                                                     "StatelessIf",
                                                                     "StatelessWhile",
                                                                     "Switch",
                                                                     "SymbolicGradient",
                                                                     "While",
                                                                     "_Arg",
                                                                     "_GatherVariableRows",
                                                                     "_Retval",
                                                                     "_SwitchN",
                                                                     "_VariableFromHost",
                                                                     "_VariableInCheckpoint",
                                                                     "_VariableToHost"};
  return ops->count(op) > 0;
}

// Return the variable's handle; null if the input is not a variable.
const ResourceHandle* HandleAt(OpKernelContext* context, int input) {
  // A dead input has no type either.
  if (!context->has_input(input) || context->input_dtype(input) != tensorflow::DT_RESOURCE) {
    return nullptr;
  }
  const Tensor& tensor = context->input(input);
  if (tensor.NumElements() != 1) return nullptr;
  const ResourceHandle& handle = tensor.flat<ResourceHandle>()(0);
  const bool is_variable = handle.hash_code() == tensorflow::TypeIndex::Make<Var>().hash_code();
  return is_variable ? &handle : nullptr;
}

}  // namespace

// The kernel has the name of the function's op; only its class tells. The class's header would
// bring in all of XLA.
bool IsCompiled(const OpKernel& kernel) {
  return std::strstr(typeid(kernel).name(), "XlaLocalLaunch") != nullptr;
}

bool UsesVariables(const OpKernel& kernel, OpKernelContext* context) {
  return HasVariable(context) && (!PassesOn(kernel.type_string_view()) || IsCompiled(kernel));
}

bool HasVariable(OpKernelContext* context) {
  for (int i = 0; i < context->num_inputs(); ++i) {
    if (HandleAt(context, i) != nullptr) return true;
  }
  return false;
}

std::vector<VariableInput> VariableInputs(OpKernelContext* context) {
  std::vector<VariableInput> found;
  for (int i = 0; i < context->num_inputs(); ++i) {
    const ResourceHandle* handle = HandleAt(context, i);
    if (handle == nullptr) continue;
    tensorflow::core::RefCountPtr<Var> var;
    if (!tensorflow::LookupResource(context, *handle, &var).ok()) continue;
    const bool known = std::any_of(found.begin(), found.end(), [&](const VariableInput& other) {
      return other.var.get() == var.get();
    });
    if (!known) found.push_back({i, std::move(var)});
  }
  return found;
}

}  // namespace tfswap
