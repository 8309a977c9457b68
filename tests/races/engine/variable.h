#ifndef TFSWAP_TESTS_RACES_ENGINE_VARIABLE_H_
#define TFSWAP_TESTS_RACES_ENGINE_VARIABLE_H_

#include <memory>
#include <string>

#include "engine/rig.h"

namespace races {

// A variable whose value may be streamed, and its use by kernels and a plan. Its value stays the
// same: the owner's.
class Variable {
 public:
  // Create it without a value.
  Variable(Rig* rig, int64_t bytes, uint32_t owner);

  // Give it its value in a new buffer, as a kernel does. Return whether there was memory.
  bool Assign() const;
  // Read it, as a kernel does. Return "", also if there was no memory for it, or the error.
  std::string Read() const;
  // Swap it, as a plan does.
  void SwapOut() const;
  void Return() const;

 private:
  // Return its present value, which may be empty.
  tensorflow::Tensor Now() const;

  Rig* rig_;
  int64_t bytes_;
  uint32_t owner_;
  std::shared_ptr<const tensorflow::Tensor> handle_;
};

}  // namespace races

#endif  // TFSWAP_TESTS_RACES_ENGINE_VARIABLE_H_
