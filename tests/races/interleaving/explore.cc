#include "interleaving/explore.h"

#include <malloc.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "interleaving/choices.h"
#include "interleaving/scheduler.h"

namespace interleaving {

namespace {

struct Arguments {
  std::vector<std::string> programs;
  int preemptions = 2;
  int64_t most_runs = 20'000;
  int64_t random_runs = 500;
  uint64_t seed = 1;
  bool show = false;
};

Arguments Parse(int argc, char** argv) {
  Arguments arguments;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string name = argv[i];
    const char* value = argv[i + 1];
    if (name == "--program") {
      arguments.programs.push_back(value);
    } else if (name == "--preemptions") {
      arguments.preemptions = std::atoi(value);
    } else if (name == "--most-runs") {
      arguments.most_runs = std::atoll(value);
    } else if (name == "--random-runs") {
      arguments.random_runs = std::atoll(value);
    } else if (name == "--seed") {
      arguments.seed = static_cast<uint64_t>(std::atoll(value));
    } else if (name == "--show") {
      arguments.show = std::atoi(value) != 0;
    } else {
      std::fprintf(stderr, "no argument %s\n", argv[i]);
      std::exit(2);
    }
  }
  return arguments;
}

void RunOnce(const Program& program, Choices* choices) {
  Scheduler::Get().Adopt(true);
  program.begin();
  Scheduler::Get().Adopt(false);
  Scheduler::Get().Run(program.threads, choices);
  program.check();
}

void Explore(const Program& program, const Arguments& arguments) {
  std::fprintf(stderr, "%s\n", program.name.c_str());
  const auto start = std::chrono::steady_clock::now();
  // Objects that are created once, such as threads and tables, exist after these runs.
  for (int i = 0; i < 3; ++i) {
    AllChoices first(0);
    RunOnce(program, &first);
    if (arguments.show) Scheduler::Get().PrintSchedule();
  }
  AllChoices all(arguments.preemptions);
  int64_t runs = 0, points = 0;
  bool complete = false;
  while (!complete && runs < arguments.most_runs) {
    RunOnce(program, &all);
    ++runs;
    points += Scheduler::Get().points();
    complete = !all.Advance();
  }
  RandomChoices random(arguments.seed);
  for (int64_t i = 0; i < arguments.random_runs; ++i) RunOnce(program, &random);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  std::printf(
      "{\"program\": \"%s\", \"preemptions\": %d, \"runs\": %lld, \"complete\": %s, "
      "\"diverged\": %lld, \"random_runs\": %lld, \"points\": %lld, \"seconds\": %.2f%s}\n",
      program.name.c_str(), arguments.preemptions, static_cast<long long>(runs),
      complete ? "true" : "false", static_cast<long long>(all.diverged()),
      static_cast<long long>(arguments.random_runs),
      static_cast<long long>(points / std::max<int64_t>(runs, 1)), took.count(),
      program.seen().c_str());
  std::fflush(stdout);
}

}  // namespace

void Pause() { Scheduler::Get().Point("use", nullptr); }

void Require(bool holds, const std::string& what) {
  if (!holds) Scheduler::Get().Fail(what);
}

int Main(int argc, char** argv, const std::function<std::vector<Program>()>& make) {
  const Arguments arguments = Parse(argc, argv);
  // The baton is passed on faster if both threads run on the same core.
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(sched_getcpu(), &one);
  sched_setaffinity(0, sizeof(one), &one);
  // Freed memory is overwritten at once, and new memory is not zero.
  mallopt(M_PERTURB, 0x5A);
  Scheduler::Get().Adopt(true);
  const std::vector<Program> programs = make();
  Scheduler::Get().Adopt(false);
  for (const Program& program : programs) {
    bool wanted = arguments.programs.empty();
    for (const std::string& name : arguments.programs) wanted = wanted || name == program.name;
    if (wanted) Explore(program, arguments);
  }
  // Threads of the explored code never end.
  std::fflush(stdout);
  _exit(0);
}

}  // namespace interleaving
