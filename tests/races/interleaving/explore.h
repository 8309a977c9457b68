#ifndef TFSWAP_TESTS_RACES_INTERLEAVING_EXPLORE_H_
#define TFSWAP_TESTS_RACES_INTERLEAVING_EXPLORE_H_

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace interleaving {

// A few threads that do something in common, in all of their interleavings. They are called again
// for each run; what one of them finds wrong it says by Require().
struct Program {
  std::string name;
  std::vector<std::pair<std::string, std::function<void()>>> threads;
  // Before each run, and behind it: nothing runs then.
  std::function<void()> begin = [] {};
  std::function<void()> check = [] {};
  // What was seen in all runs: the rest of a JSON object.
  std::function<std::string()> seen = [] { return std::string(); };
};

// Another thread may go first, between two accesses that no lock and no atomic lies between.
void Pause();
// Ends the program with `what` and the schedule, unless `holds`.
void Require(bool holds, const std::string& what);

// Runs the programs that the command line names, or all, and writes a line of JSON of each:
//   [--program NAME]... [--preemptions 2] [--most-runs 20000] [--random-runs 500] [--seed 1]
//   [--show 1]: the schedules of the first runs
// Exits with 1 at the first run that fails, with its schedule.
int Main(int argc, char** argv, const std::function<std::vector<Program>()>& make);

}  // namespace interleaving

#endif  // TFSWAP_TESTS_RACES_INTERLEAVING_EXPLORE_H_
