#ifndef TFSWAP_TESTS_RACES_INTERLEAVING_EXPLORE_H_
#define TFSWAP_TESTS_RACES_INTERLEAVING_EXPLORE_H_

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace interleaving {

// A few concurrent threads, in all of their interleavings. They are called again for each run, and
// report errors by Require().
struct Program {
  std::string name;
  std::vector<std::pair<std::string, std::function<void()>>> threads;
  // Called before and after each run, when no thread runs.
  std::function<void()> begin = [] {};
  std::function<void()> check = [] {};
  // Return the observations of all runs: the rest of a JSON object.
  std::function<std::string()> seen = [] { return std::string(); };
};

// Let another thread run first, between two accesses without a lock or an atomic between them.
void Pause();
// End the program with `what` and the schedule, unless `holds`.
void Require(bool holds, const std::string& what);

// Run the programs that the command line names, or all, and write a line of JSON for each:
//   [--program NAME]... [--preemptions 2] [--most-runs 20000] [--random-runs 500] [--seed 1]
//   [--show 1]: the schedules of the first runs
// Exit with 1 at the first run that fails, with its schedule.
int Main(int argc, char** argv, const std::function<std::vector<Program>()>& make);

}  // namespace interleaving

#endif  // TFSWAP_TESTS_RACES_INTERLEAVING_EXPLORE_H_
