#ifndef TFSWAP_CC_ALLOCATOR_VARIABLE_INPUTS_H_
#define TFSWAP_CC_ALLOCATOR_VARIABLE_INPUTS_H_

#include <vector>

#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_var.h"

namespace tfswap {

// A variable that a kernel has among its inputs.
struct VariableInput {
  int input;
  tensorflow::core::RefCountPtr<tensorflow::Var> var;
};

// Whether a kernel looks at the variables that it has among its inputs, or changes them.
bool UsesVariables(const tensorflow::OpKernel& kernel);
// Whether any of them is one, and not an iterator, say.
bool HasVariable(tensorflow::OpKernelContext* context);
// Those of a kernel that runs, each once. Those that do not exist yet are left out.
std::vector<VariableInput> VariableInputs(tensorflow::OpKernelContext* context);

}  // namespace tfswap

#endif  // TFSWAP_CC_ALLOCATOR_VARIABLE_INPUTS_H_
