// Fuzzes plans and layouts as input of the pass and the allocator, guided by coverage.
//
//   fuzz_plans GRAPH CORPUS FOUND SECONDS SEED
//
// GRAPH is a GraphDef. Inputs are the files in the folder CORPUS: plans, layouts, which begin with
// "layout", and files of remembered plans, which begin with "remembered". With 0 seconds, each is
// tried once; else they are mutated and tried for that long, and those that reach new code are
// written to the folder FOUND. The current input is there as "current": if the process dies, that
// file is the cause.

#include <dirent.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "allocator/slab_layouts.h"
#include "fuzz_coverage.h"
#include "fuzz_mutator.h"
#include "grappler/index/graph_index.h"
#include "grappler/rewrite/bootstrap.h"
#include "grappler/rewrite/recomputes.h"
#include "grappler/rewrite/rewriter.h"
#include "grappler/swap_spec.h"
#include "tensorflow/core/framework/function.h"
#include "tensorflow/core/framework/op.h"

namespace tfswap {
namespace {

using ::tensorflow::FunctionLibraryDefinition;
using ::tensorflow::GraphDef;

// Longer than any input takes; the signal then ends the process.
constexpr unsigned kHangSeconds = 20;
constexpr char kLayout[] = "layout", kRemembered[] = "remembered";
constexpr char kFingerprint[] = "0123456789abcdef";  // the graph of the corpus's plans

std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

void WriteFile(const std::string& path, const std::string& data) {
  std::ofstream(path, std::ios::binary).write(data.data(), static_cast<long>(data.size()));
}

std::vector<std::string> ReadFolder(const std::string& folder) {
  std::set<std::string> names;
  DIR* open = opendir(folder.c_str());
  if (open == nullptr) return {};
  while (const dirent* entry = readdir(open)) {
    if (entry->d_name[0] != '.') names.insert(entry->d_name);
  }
  closedir(open);
  std::vector<std::string> files;
  for (const std::string& name : names) files.push_back(ReadFile(folder + "/" + name));
  return files;
}

void Check(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "fuzz_plans: %s\n", what);
  std::abort();
}

class Target {
 public:
  explicit Target(GraphDef graph)
      : graph_(std::move(graph)), functions_(tensorflow::OpRegistry::Global(), graph_.library()) {}

  const GraphDef& graph() const { return graph_; }

  // Return whether the input is accepted.
  bool Try(const std::string& input) {
    if (input.rfind(kLayout, 0) == 0) return TryLayout(input.substr(sizeof(kLayout) - 1));
    if (input.rfind(kRemembered, 0) == 0) {
      const absl::StatusOr<FunctionSpec> function =
          ParseRemembered(input.substr(sizeof(kRemembered) - 1), kFingerprint);
      return function.ok() && TryFunction(*function);
    }
    const absl::StatusOr<PlanSpec> plan = ParsePlan(input);
    if (!plan.ok()) {
      Check(!plan.status().message().empty(), "a plan was refused without a word");
      return false;
    }
    Check(plan->sections >= 1 && plan->batch >= 0 && plan->min_bytes >= 0, "a number out of range");
    bool all = true;
    for (const FunctionSpec& function : plan->functions) all &= TryFunction(function);
    return all;
  }

 private:
  bool TryFunction(const FunctionSpec& function) {
    const absl::StatusOr<GraphDef> again = WithRecomputes(graph_, functions_, function.recomputes);
    if (!again.ok()) return false;
    const absl::StatusOr<GraphIndex> index = GraphIndex::Build(*again, functions_);
    if (!index.ok()) return false;
    std::vector<SwapSpec> swaps = function.swaps;
    absl::StatusOr<GraphDef> result = Rewrite(*again, *index, swaps, function.order, 0);
    if (!result.ok()) return false;
    if (function.reserve) {
      std::set<std::string> planned;
      for (const SwapSpec& swap : swaps) planned.insert(swap.tensor);
      const GraphDef ordered = WithEdges(*index, *again, EdgesThroughSwaps(*index, *result));
      const absl::StatusOr<GraphIndex> clock = GraphIndex::Build(ordered, functions_);
      Check(clock.ok(), "the edges of a plan close a cycle that its graph does not have");
      for (SwapSpec& lazy : Bootstrap(*clock, Chain(*clock))) {
        if (planned.count(lazy.tensor) == 0) swaps.push_back(std::move(lazy));
      }
      result = Rewrite(*again, *index, swaps, function.order, 0);
      if (!result.ok()) return false;
    }
    Check(result->node_size() >= graph_.node_size(), "a node is lost");
    Check(static_cast<size_t>(result->node_size()) <= 17 * MaxNodes(graph_.node_size()),
          "the graph has grown");
    return true;
  }

  bool TryLayout(const std::string& text) {
    SlabLayouts layouts;
    if (!layouts.Install("graph", text, 1024).ok()) return false;
    const std::string name = text.substr(0, text.find('\t'));
    const PlannedOpRef op = layouts.FindByName("graph", name);
    for (const int64_t bytes : {int64_t{0}, int64_t{4096}, int64_t{-1}}) {
      for (const uint32_t ordinal : {0U, 1U, 4095U, ~0U}) {
        if (op) op->Find(0, ordinal, bytes);
      }
    }
    Check(layouts.height() >= 0, "a layout of negative height");
    return true;
  }

  const GraphDef graph_;
  const FunctionLibraryDefinition functions_;
};

int Main(int argc, char** argv) {
  if (argc != 6) {
    std::fprintf(stderr, "fuzz_plans GRAPH CORPUS FOUND SECONDS SEED\n");
    return 2;
  }
  const std::string found = argv[3];
  const double seconds = std::atof(argv[4]);
  GraphDef graph;
  Check(graph.ParseFromString(ReadFile(argv[1])), "the graph cannot be read");
  std::vector<std::string> names;
  for (const auto& node : graph.node()) names.push_back(node.name());
  Target target(std::move(graph));
  std::vector<std::string> corpus = ReadFolder(argv[2]);
  Check(!corpus.empty(), "the corpus is empty");

  FuzzCoverage coverage;
  int64_t tried = 0, taken = 0, news = 0;
  const auto attempt = [&](const std::string& input) {
    WriteFile(found + "/current", input);
    alarm(kHangSeconds);
    coverage.Begin();
    taken += target.Try(input);
    ++tried;
    return coverage.End();
  };
  for (const std::string& input : corpus) attempt(input);
  FuzzMutator mutator(std::move(names), std::strtoull(argv[5], nullptr, 10));
  const auto begun = std::chrono::steady_clock::now();
  while (std::chrono::steady_clock::now() - begun < std::chrono::duration<double>(seconds)) {
    const std::string input = mutator.Changed(corpus);
    if (!attempt(input) || input.size() > 8192) continue;
    corpus.push_back(input);
    WriteFile(found + "/" + std::to_string(news++), input);
  }
  unlink((found + "/current").c_str());
  std::printf("{\"tried\": %ld, \"taken\": %ld, \"new\": %ld, \"corpus\": %zu, \"edges\": %zu}\n",
              static_cast<long>(tried), static_cast<long>(taken), static_cast<long>(news),
              corpus.size(), coverage.edges());
  return 0;
}

}  // namespace
}  // namespace tfswap

int main(int argc, char** argv) { return tfswap::Main(argc, argv); }
