#include "grappler/sections/section_choice.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "grappler/index/inferred_graph.h"
#include "grappler/sections/plain_sums.h"
#include "grappler/sections/section_emitter.h"
#include "grappler/sections/section_plan.h"

namespace tfswap {

using ::tensorflow::grappler::GrapplerItem;

namespace {

// Of the room. The largest op is not alone: the gradients of its weights and of its input are
// computed at once, kernels have workspaces, tensors are on their way. Nets of convolutions ran out
// of memory where it took more than some 0.46. Too few sections end a training, too many only
// round otherwise.
constexpr double kWholeShare = 0.4;
// Where it is cut all the same, fewer copies shall be left to make.
constexpr double kCutShare = 0.35;
// A floor that falls by less has come to what is never cut.
constexpr double kFalls = 0.98;
constexpr int64_t kMostSections = 256;
// Of a graph that was cut. A plan may ask for any number of sections.
constexpr int64_t kMostCopies = int64_t{1} << 22;

// The wanted number, or the next one that divides the batch, if it is less than twice as many.
int64_t Dividing(int64_t examples, int64_t wanted) {
  for (int64_t count = wanted; count < 2 * wanted; ++count) {
    if (examples % count == 0) return count;
  }
  return wanted;
}

// The smallest divisor of `examples` that makes sections of at most `batch / wanted`.
int64_t CountFor(int64_t examples, int64_t wanted, int64_t batch) {
  if (batch <= 0 || examples <= 0 || examples == batch) return wanted;
  for (int64_t count = 1; count <= examples; ++count) {
    if (examples % count == 0 && examples * wanted <= count * batch) return count;
  }
  return wanted;
}

// Numbers of sections that are looked at, from the smallest on, until the largest op needs no less.
class Numbers {
 public:
  explicit Numbers(const InferredGraph& graph) : graph_(graph) {}

  // Plans the next number; whether there is one. The first is one section.
  bool Next() {
    if (ended_) return false;
    if (floors_.empty()) {
      floors_.push_back({1, FloorOf(graph_, plan_)});
      return true;
    }
    for (wanted_ *= 2; wanted_ <= kMostSections; wanted_ *= 2) {
      // Whole examples if there is a number for them, else rows of images.
      for (const int64_t count : {Dividing(graph_.batch().examples, wanted_), wanted_}) {
        if (count == floors_.back().sections) continue;
        SectionPlan plan = PlanSections(graph_, count);
        if (plan.ops == 0) continue;
        const OpFloor floor = FloorOf(graph_, plan);
        const auto before = static_cast<double>(floors_.back().floor.bytes);
        ended_ = static_cast<double>(floor.bytes) > kFalls * before;
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
  int64_t wanted_ = 1;
  bool ended_ = false;
};

SectionChoice Chosen(const InferredGraph& graph, const SectionPlan& plan) {
  SectionChoice choice;
  choice.sections = plan.count;
  choice.examples = graph.batch().examples;
  choice.ops = plan.ops;
  if (plan.ops > 0) choice.graph = SectionEmitter(graph, plan).Emit();
  return choice;
}

}  // namespace

absl::StatusOr<SectionChoice> ChooseSections(const GrapplerItem& given, int64_t room_bytes) {
  const GrapplerItem item = given.WithGraph(WithPlainSums(given.graph));
  const auto graph = InferredGraph::Of(item);
  if (!graph.ok()) return graph.status();
  const auto fits = [&](int64_t bytes, double share) {
    return static_cast<double>(bytes) <= share * static_cast<double>(room_bytes);
  };
  Numbers numbers(**graph);
  while (numbers.Next()) {
    if (fits(numbers.bytes(), numbers.plan().ops == 0 ? kWholeShare : kCutShare)) break;
  }
  SectionChoice choice = Chosen(**graph, numbers.plan());
  choice.floors = numbers.floors();
  return choice;
}

absl::StatusOr<SectionChoice> InWantedSections(const GrapplerItem& given, int64_t wanted,
                                               int64_t batch) {
  const GrapplerItem item = given.WithGraph(WithPlainSums(given.graph));
  const auto graph = InferredGraph::Of(item);
  if (!graph.ok()) return graph.status();
  const int64_t count = CountFor((*graph)->batch().examples, wanted, batch);
  if (count > kMostCopies / std::max((*graph)->index().size(), 1)) {
    return absl::InvalidArgumentError(absl::StrCat("in ", count, " sections, its ",
                                                   (*graph)->index().size(),
                                                   " ops would become more than ", kMostCopies));
  }
  SectionPlan plan;
  if (count > 1) plan = PlanSections(**graph, count);
  if (plan.ops == 0) plan.count = 1;
  return Chosen(**graph, plan);
}

absl::StatusOr<std::vector<SectionFloor>> FloorsOf(const GrapplerItem& given) {
  const GrapplerItem item = given.WithGraph(WithPlainSums(given.graph));
  const auto graph = InferredGraph::Of(item);
  if (!graph.ok()) return graph.status();
  Numbers numbers(**graph);
  while (numbers.Next()) continue;
  return numbers.floors();
}

}  // namespace tfswap
