#ifndef TFSWAP_FUZZ_COVERAGE_H_
#define TFSWAP_FUZZ_COVERAGE_H_

#include <cstddef>

namespace tfswap {

// Which places of the code that is compiled with -fsanitize-coverage=trace-pc inputs reach, and
// about how often. There is one per process.
class FuzzCoverage {
 public:
  void Begin();
  // Return whether the input reached a place that no input had reached so often.
  bool End();
  size_t edges() const { return edges_; }

 private:
  size_t edges_ = 0;
};

}  // namespace tfswap

#endif  // TFSWAP_FUZZ_COVERAGE_H_
