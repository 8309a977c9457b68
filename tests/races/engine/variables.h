#ifndef TFSWAP_TESTS_RACES_ENGINE_VARIABLES_H_
#define TFSWAP_TESTS_RACES_ENGINE_VARIABLES_H_

#include <mutex>
#include <vector>

#include "engine/rig.h"
#include "hammer.h"

namespace races {

// Variables whose values are streamed, and what kernels and a plan do with them. Each has the same
// value all the time.
class Variables {
 public:
  explicit Variables(Rig* rig);

  void Read(Dice* dice);
  void Write(Dice* dice);
  void Leave(Dice* dice);
  void Return(Dice* dice);
  void Switch(Dice* dice);
  // One goes, another one is there.
  void Renew(Dice* dice);
  void End();

 private:
  struct Variable {
    tensorflow::Tensor handle;
    uint32_t owner;
    int64_t bytes;
  };
  Variable Any(Dice* dice);
  Variable Make(Dice* dice);
  bool Assign(const Variable& variable);

  Rig* const rig_;
  std::mutex mu_, switch_mu_;
  std::vector<Variable> variables_;
};

}  // namespace races

#endif  // TFSWAP_TESTS_RACES_ENGINE_VARIABLES_H_
