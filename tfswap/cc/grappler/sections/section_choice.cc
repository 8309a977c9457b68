#include "grappler/sections/section_choice.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "grappler/index/inferred_graph.h"
#include "grappler/sections/restore_addn.h"
#include "grappler/sections/section_emitter.h"
#include "grappler/sections/section_plan.h"

namespace tfswap {

using ::tensorflow::grappler::GrapplerItem;

namespace {

// The share of the available bytes that the largest op may need. Other tensors exist beside it:
// weight and input gradients are computed at once, kernels have workspaces, copies are in flight.
// Convolutional networks ran out of memory above a share of about 0.46. Too few sections fail a
// training, too many only change the rounding.
constexpr double kMaxShareUnsplit = 0.4;
// A batch that is split anyway gets a margin, to save swaps.
constexpr double kMaxShareSplit = 0.35;
// A smaller decrease means that the largest op cannot be split further.
constexpr double kMaxRatio = 0.98;
constexpr int64_t kMostTried = 256;
// Limit on the nodes of a split graph: plans are untrusted input.
constexpr int64_t kMaxCopies = int64_t{1} << 22;

// Return the smallest divisor of the batch in [requested, 2 * requested), or `requested` if there
// is none.
int64_t NextDivisor(int64_t examples, int64_t requested) {
  for (int64_t count = requested; count < 2 * requested; ++count) {
    if (examples % count == 0) return count;
  }
  return requested;
}

// Return the smallest divisor of `examples` whose sections have at most `batch / requested`
// examples.
int64_t SectionsFor(int64_t examples, int64_t requested, int64_t batch) {
  if (batch <= 0 || examples <= 0 || examples == batch) return requested;
  for (int64_t count = 1; count <= examples; ++count) {
    if (examples % count == 0 && examples * requested <= count * batch) return count;
  }
  return requested;
}

// Enumerates increasing numbers of sections until the floor no longer falls.
class SectionCandidates {
 public:
  explicit SectionCandidates(const InferredGraph& graph) : graph_(graph) {}

  // Plan the next number of sections; returns false if there is none. The first number is 1.
  bool Next() {
    if (ended_) return false;
    if (floors_.empty()) {
      floors_.push_back({1, FloorOf(graph_, plan_)});
      return true;
    }
    for (requested_ *= 2; requested_ <= kMostTried; requested_ *= 2) {
      // Prefer a number that splits into whole examples over one that splits images into rows.
      for (const int64_t count : {NextDivisor(graph_.batch().examples, requested_), requested_}) {
        if (count == floors_.back().sections) continue;
        SectionPlan plan = PlanSections(graph_, count);
        if (plan.ops == 0) continue;
        const OpFloor floor = FloorOf(graph_, plan);
        const auto before = static_cast<double>(floors_.back().floor.bytes);
        ended_ = static_cast<double>(floor.bytes) > kMaxRatio * before;
        if (ended_) return false;
        floors_.push_back({count, floor});
        plan_ = std::move(plan);
        return true;
      }
    }
    return false;
  }

  const SectionPlan& plan() const { return plan_; }
  int64_t bytes() const { return floors_.back().floor.bytes; }
  const std::vector<SectionFloor>& floors() const { return floors_; }

 private:
  const InferredGraph& graph_;
  SectionPlan plan_;
  std::vector<SectionFloor> floors_;
  int64_t requested_ = 1;
  bool ended_ = false;
};

SectionChoice MakeChoice(const InferredGraph& graph, const SectionPlan& plan) {
  SectionChoice choice;
  choice.sections = plan.count;
  choice.examples = graph.batch().examples;
  choice.ops = plan.ops;
  if (plan.ops > 0) choice.graph = SectionEmitter(graph, plan).Emit();
  return choice;
}

}  // namespace

absl::StatusOr<SectionChoice> ChooseSections(const GrapplerItem& given, int64_t available_bytes) {
  const GrapplerItem item = given.WithGraph(RestoreAddN(given.graph));
  const auto graph = InferredGraph::Of(item);
  if (!graph.ok()) return graph.status();
  const auto fits = [&](int64_t bytes, double share) {
    return static_cast<double>(bytes) <= share * static_cast<double>(available_bytes);
  };
  SectionCandidates candidates(**graph);
  while (candidates.Next()) {
    if (fits(candidates.bytes(), candidates.plan().ops == 0 ? kMaxShareUnsplit : kMaxShareSplit))
      break;
  }
  SectionChoice choice = MakeChoice(**graph, candidates.plan());
  choice.floors = candidates.floors();
  return choice;
}

absl::StatusOr<SectionChoice> ApplySections(const GrapplerItem& given, int64_t requested,
                                            int64_t batch) {
  const GrapplerItem item = given.WithGraph(RestoreAddN(given.graph));
  const auto graph = InferredGraph::Of(item);
  if (!graph.ok()) return graph.status();
  const int64_t count = SectionsFor((*graph)->batch().examples, requested, batch);
  if (count > kMaxCopies / std::max((*graph)->index().size(), 1)) {
    return absl::InvalidArgumentError(absl::StrCat("in ", count, " sections, its ",
                                                   (*graph)->index().size(),
                                                   " ops would become more than ", kMaxCopies));
  }
  SectionPlan plan;
  if (count > 1) plan = PlanSections(**graph, count);
  if (plan.ops == 0) plan.count = 1;
  return MakeChoice(**graph, plan);
}

absl::StatusOr<std::vector<SectionFloor>> FloorsOf(const GrapplerItem& given) {
  const GrapplerItem item = given.WithGraph(RestoreAddN(given.graph));
  const auto graph = InferredGraph::Of(item);
  if (!graph.ok()) return graph.status();
  SectionCandidates candidates(**graph);
  while (candidates.Next()) continue;
  return candidates.floors();
}

}  // namespace tfswap
