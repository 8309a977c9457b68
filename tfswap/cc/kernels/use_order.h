#ifndef TFSWAP_CC_KERNELS_USE_ORDER_H_
#define TFSWAP_CC_KERNELS_USE_ORDER_H_

#include <cstdint>
#include <unordered_map>
#include <vector>

namespace tfswap {

// Predicts the next uses of variables: steps repeat the same uses, and a variable may have several
// in a step, such as one of the forward and one of the backward part.
//
//   uses    ... a b c | c b a | a b c | c b
//                               ^ cursor: the same place, one step ago
//                                 what follows it comes next
class UseOrder {
 public:
  using Key = const void*;

  // Note a use.
  void Add(Key key);
  // Forget a variable; its uses stay, as those of nothing.
  void Remove(Key key);
  void Clear();

  struct Use {
    Key key;
    int64_t distance;  // the number of uses from now; 1: the next one
  };
  // Return the next uses of variables, the soonest first, one for each variable, up to `count`.
  std::vector<Use> Next(int count) const;
  // Return how far away the next use of each variable is; those without a known one are missing.
  std::unordered_map<Key, int64_t> Distances() const;

 private:
  // Return the place before the end where `key` was used after `previous`, or at all; -1 if
  // nowhere.
  int64_t PlaceBefore(Key previous, Key key) const;
  void Forget();

  std::vector<Key> uses_;
  // Last places of a use, and of a use after a certain one.
  std::unordered_map<Key, int64_t> place_;
  std::unordered_map<uint64_t, int64_t> place_of_pair_;
  int64_t cursor_ = -1;  // the place in an earlier step of the last use; -1: unknown
};

}  // namespace tfswap

#endif  // TFSWAP_CC_KERNELS_USE_ORDER_H_
