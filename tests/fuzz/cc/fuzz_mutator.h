#ifndef TFSWAP_FUZZ_MUTATOR_H_
#define TFSWAP_FUZZ_MUTATOR_H_

#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace tfswap {

// Changes small parts of JSON and lines of text: names become other names, numbers other numbers,
// and bracketed parts are deleted or repeated.
class FuzzMutator {
 public:
  // `names` are those of a graph's nodes.
  FuzzMutator(std::vector<std::string> names, uint64_t seed);

  // Return a changed copy.
  std::string Changed(const std::vector<std::string>& corpus);

 private:
  using Span = std::pair<size_t, size_t>;  // begin and length

  size_t Below(size_t end) { return dice_() % end; }
  const std::string& Any(const std::vector<std::string>& of) { return of[Below(of.size())]; }
  std::string Name();
  void ChangeText(std::string* text);
  void ChangeBytes(std::string* text);

  std::mt19937_64 dice_;
  const std::vector<std::string> names_;
};

}  // namespace tfswap

#endif  // TFSWAP_FUZZ_MUTATOR_H_
