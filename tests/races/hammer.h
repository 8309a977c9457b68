#ifndef TFSWAP_TESTS_RACES_HAMMER_H_
#define TFSWAP_TESTS_RACES_HAMMER_H_

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace races {

using Dice = std::mt19937;

inline void Require(bool holds, const std::string& what) {
  if (holds) return;
  std::fprintf(stderr, "FAILED: %s\n", what.c_str());
  std::fflush(stderr);
  std::_Exit(1);
}

inline int64_t Between(Dice* dice, int64_t least, int64_t most) {
  return std::uniform_int_distribution<int64_t>(least, most)(*dice);
}

// One of several actions that threads repeat, as often as its weight says.
struct Action {
  std::string name;
  int weight;
  std::function<void(Dice*)> act;
};

// Run random actions on `threads` threads for that long, and on a busy machine up to ten times as
// long, until each has run. Print how often each ran, as JSON.
inline void Hammer(const std::vector<Action>& actions, int threads, double seconds) {
  std::vector<int> weights;
  for (const Action& action : actions) weights.push_back(action.weight);
  std::vector<std::atomic<int64_t>> done(actions.size());
  const auto begin = std::chrono::steady_clock::now();
  const auto goes_on = [&] {
    const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - begin;
    if (passed.count() < seconds) return true;
    return passed.count() < 10 * seconds &&
           std::any_of(done.begin(), done.end(), [](const auto& count) { return count == 0; });
  };
  std::vector<std::thread> own;
  for (int i = 0; i < threads; ++i) {
    own.emplace_back([&, i] {
      Dice dice(static_cast<uint32_t>(i + 1));
      std::discrete_distribution<size_t> any(weights.begin(), weights.end());
      while (goes_on()) {
        const size_t chosen = any(dice);
        actions[chosen].act(&dice);
        done[chosen].fetch_add(1, std::memory_order_relaxed);
      }
    });
  }
  for (std::thread& thread : own) thread.join();
  std::printf("{");
  for (size_t i = 0; i < actions.size(); ++i) {
    std::printf("%s\"%s\": %lld", i == 0 ? "" : ", ", actions[i].name.c_str(),
                static_cast<long long>(done[i].load()));
  }
  std::printf("}\n");
}

// "--name value" pairs.
inline std::map<std::string, std::string> ArgumentsOf(int argc, char** argv) {
  std::map<std::string, std::string> arguments;
  for (int i = 1; i + 1 < argc; i += 2) arguments[argv[i] + 2] = argv[i + 1];
  return arguments;
}

}  // namespace races

#endif  // TFSWAP_TESTS_RACES_HAMMER_H_
