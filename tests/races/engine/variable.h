#ifndef TFSWAP_TESTS_RACES_ENGINE_VARIABLE_H_
#define TFSWAP_TESTS_RACES_ENGINE_VARIABLE_H_

#include <memory>
#include <string>

#include "engine/rig.h"

namespace races {

// A variable whose value may be streamed, and what kernels and a plan do with it. It has the same
// value all the time: the owner's.
class Variable {
 public:
  // Without a value yet.
  Variable(Rig* rig, int64_t bytes, uint32_t owner);

  // A kernel gives it its value in a new buffer. Whether there was memory.
  bool Assign() const;
  // A kernel reads it. "", also if there was no memory for it, or what is wrong.
  std::string Read() const;
  // A plan's.
  void SwapOut() const;
  void Return() const;

 private:
  // What it is right now, be it nothing.
  tensorflow::Tensor Now() const;

  Rig* rig_;
  int64_t bytes_;
  uint32_t owner_;
  std::shared_ptr<const tensorflow::Tensor> handle_;
};

}  // namespace races

#endif  // TFSWAP_TESTS_RACES_ENGINE_VARIABLE_H_
