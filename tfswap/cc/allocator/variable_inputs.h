#ifndef TFSWAP_CC_ALLOCATOR_VARIABLE_INPUTS_H_
#define TFSWAP_CC_ALLOCATOR_VARIABLE_INPUTS_H_

#include <vector>

#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_var.h"

namespace tfswap {

// A variable among the inputs of a kernel.
struct VariableInput {
  int input;
  tensorflow::core::RefCountPtr<tensorflow::Var> var;
};

// Return whether a kernel runs a function that XLA compiled.
bool IsCompiled(const tensorflow::OpKernel& kernel);
// Return whether a kernel has variables among its inputs and reads or writes them.
bool UsesVariables(const tensorflow::OpKernel& kernel, tensorflow::OpKernelContext* context);
// Return whether any input is a variable (and not an iterator, for example).
bool HasVariable(tensorflow::OpKernelContext* context);
// Return the variables of a running kernel, each once, without those that do not exist yet.
std::vector<VariableInput> VariableInputs(tensorflow::OpKernelContext* context);

}  // namespace tfswap

#endif  // TFSWAP_CC_ALLOCATOR_VARIABLE_INPUTS_H_
