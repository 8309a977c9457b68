#include "grappler/section_choice.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "grappler/graph_index.h"
#include "tensorflow/core/framework/function.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/grappler/costs/graph_properties.h"

namespace tfswap {

using ::tensorflow::GraphDef;
using ::tensorflow::grappler::GraphProperties;
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

// A graph with what is known of it; the item must live as long.
class Inferred {
 public:
  static absl::StatusOr<std::unique_ptr<Inferred>> Of(const GrapplerItem& item) {
    auto made = std::unique_ptr<Inferred>(new Inferred(item));
    const tensorflow::FunctionLibraryDefinition functions(tensorflow::OpRegistry::Global(),
                                                          item.graph.library());
    absl::StatusOr<GraphIndex> index = GraphIndex::Build(item.graph, functions);
    if (!index.ok()) return index.status();
    made->index_ = *std::move(index);
    const absl::Status inferred = made->properties_.InferStatically(/*assume_valid_feeds=*/true);
    if (!inferred.ok()) return inferred;
    return made;
  }

  OpFloor Floor() const { return FloorOf(index_, properties_); }
  // As sections.cc finds them: of what brings data, the largest tensor's.
  int64_t Examples() const;

 private:
  explicit Inferred(const GrapplerItem& item) : properties_(item) {}
  GraphIndex index_;
  GraphProperties properties_;
};

int64_t Inferred::Examples() const {
  int64_t examples = 0;
  for (const bool iterators : {true, false}) {
    int64_t most = 0;
    for (int n = 0; n < index_.size(); ++n) {
      const std::string& op = index_.node(n).op();
      const bool brings = iterators ? op == "IteratorGetNext" : op == "_Arg" || op == "Placeholder";
      if (!brings || index_.context(n) != 0) continue;
      for (const auto& output : properties_.GetOutputProperties(index_.node(n).name())) {
        if (output.shape().unknown_rank() || output.shape().dim_size() == 0) continue;
        int64_t elements = 1;
        for (const auto& dim : output.shape().dim()) {
          elements *= std::max<int64_t>(dim.size(), 0);
        }
        if (elements <= most) continue;
        most = elements;
        examples = output.shape().dim(0).size();
      }
    }
    if (examples > 0) return examples;
  }
  return examples;
}

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

absl::StatusOr<OpFloor> FloorIn(const GrapplerItem& item, const GraphDef& graph) {
  const GrapplerItem cut = item.WithGraph(GraphDef(graph));
  const auto inferred = Inferred::Of(cut);
  if (!inferred.ok()) return inferred.status();
  return (*inferred)->Floor();
}

}  // namespace

absl::StatusOr<SectionChoice> ChooseSections(const GrapplerItem& item, int64_t room_bytes) {
  const auto whole = Inferred::Of(item);
  if (!whole.ok()) return whole.status();
  SectionChoice choice;
  choice.examples = (*whole)->Examples();
  choice.floors.push_back({1, (*whole)->Floor()});
  const auto fits = [&](int64_t bytes, double share) {
    return static_cast<double>(bytes) <= share * static_cast<double>(room_bytes);
  };
  OpFloor least = choice.floors.front().floor;
  if (fits(least.bytes, kWholeShare)) return choice;
  for (int64_t wanted = 2; wanted <= kMostSections; wanted *= 2) {
    // Whole examples if there is a number for them, else rows of images.
    for (const int64_t count : {Dividing(choice.examples, wanted), wanted}) {
      if (count == choice.floors.back().sections) continue;
      absl::StatusOr<Sectioned> cut = CutIntoSections(item, count);
      if (!cut.ok()) return cut.status();
      if (cut->ops == 0) continue;
      const absl::StatusOr<OpFloor> floor = FloorIn(item, cut->graph);
      if (!floor.ok()) return floor.status();
      choice.floors.push_back({count, *floor});
      if (static_cast<double>(floor->bytes) > kFalls * static_cast<double>(least.bytes)) {
        return choice;
      }
      least = *floor;
      choice.sections = count;
      choice.cut = *std::move(cut);
      if (fits(least.bytes, kCutShare)) return choice;
      break;
    }
  }
  return choice;
}

absl::StatusOr<SectionChoice> InWantedSections(const GrapplerItem& item, int64_t wanted,
                                               int64_t batch) {
  const auto whole = Inferred::Of(item);
  if (!whole.ok()) return whole.status();
  SectionChoice choice;
  choice.examples = (*whole)->Examples();
  const int64_t count = CountFor(choice.examples, wanted, batch);
  if (count == 1) return choice;
  absl::StatusOr<Sectioned> cut = CutIntoSections(item, count);
  if (!cut.ok()) return cut.status();
  if (cut->ops == 0) return choice;
  choice.sections = count;
  choice.cut = *std::move(cut);
  return choice;
}

}  // namespace tfswap
