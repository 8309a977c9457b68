// The Grappler optimizer "tfswap": executes the plan that its parameter_map carries.

#include <algorithm>
#include <limits>
#include <memory>
#include <optional>
#include <set>
#include <unordered_set>

#include "absl/log/log.h"
#include "absl/strings/str_cat.h"
#include "core/util/graph_mark.h"
#include "device/device_table.h"
#include "grappler/index/fingerprint.h"
#include "grappler/index/graph_description.h"
#include "grappler/index/graph_index.h"
#include "grappler/index/most_bytes.h"
#include "grappler/index/variable_reads.h"
#include "grappler/pass_log.h"
#include "grappler/remembered_plan.h"
#include "grappler/rewrite/addends_in_turn.h"
#include "grappler/rewrite/bootstrap.h"
#include "grappler/rewrite/large_constants.h"
#include "grappler/rewrite/loop_lists.h"
#include "grappler/rewrite/order_edges.h"
#include "grappler/rewrite/recomputes.h"
#include "grappler/rewrite/rewriter.h"
#include "grappler/rewrite/update_turns.h"
#include "grappler/rewrite/variable_rows.h"
#include "grappler/sections/section_choice.h"
#include "grappler/swap_spec.h"
#include "grappler/tensorflow_passes.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/grappler/grappler_item.h"
#include "tensorflow/core/grappler/optimizers/custom_graph_optimizer.h"
#include "tensorflow/core/grappler/optimizers/custom_graph_optimizer_registry.h"
#include "tensorflow/core/util/device_name_utils.h"

namespace tfswap {

using ::tensorflow::ConfigProto;
using ::tensorflow::GraphDef;
using ::tensorflow::RewriterConfig;
using ::tensorflow::grappler::Cluster;
using ::tensorflow::grappler::GrapplerItem;

namespace {

// The entry of `custom_optimizers` that holds the user's options for TensorFlow's passes.
constexpr char kPasses[] = "tfswap_tensorflow_passes";

// A graph that needs at most this share of the budget stays as it is (plan/measured_plan.py has the
// same).
constexpr double kClearlyFits = 0.8;

// Smaller graphs (input pipelines, savers, single ops) have nothing to swap.
constexpr int kMinNodes = 8;

// Return the functions without their bodies.
tensorflow::FunctionDefLibrary Signatures(const tensorflow::FunctionDefLibrary& library) {
  tensorflow::FunctionDefLibrary signatures;
  for (const tensorflow::FunctionDef& function : library.function()) {
    tensorflow::FunctionDef* signature = signatures.add_function();
    *signature->mutable_signature() = function.signature();
    *signature->mutable_attr() = function.attr();
    *signature->mutable_arg_attr() = function.arg_attr();
    *signature->mutable_resource_arg_unique_id() = function.resource_arg_unique_id();
  }
  *signatures.mutable_gradient() = library.gradient();
  return signatures;
}

// Add the on-demand swaps of all other tensors to the planned ones. They are used if a step needs
// more memory than predicted, before an allocation fails.
void AddReserve(std::vector<SwapSpec> on_demand, std::vector<SwapSpec>* swaps) {
  std::unordered_set<std::string> planned;
  for (const SwapSpec& swap : *swaps) planned.insert(swap.tensor);
  for (SwapSpec& swap : on_demand) {
    if (planned.count(swap.tensor) == 0) swaps->push_back(std::move(swap));
  }
}

// Set the fingerprint on all nodes, by which the device's allocator finds the memory layout and
// recordings assign ops to graphs.
void Mark(const std::string& fingerprint, GraphDef* graph) {
  for (tensorflow::NodeDef& node : *graph->mutable_node()) {
    (*node.mutable_attr())[kGraphAttribute].set_s(fingerprint);
  }
}

void Append(const Edges& edges, Edges* all) { all->insert(all->end(), edges.begin(), edges.end()); }

void AddEdges(const char* what, const Edges& edges, std::string* description) {
  for (const auto& [before, after] : edges) {
    absl::StrAppend(description, what, "\t", before, "\t", after, "\n");
  }
}

// Return the bytes that a step may allocate on the fullest of its managed devices besides what is
// in use now (variables, optimizer state, prefetched batches), up to a share of the budget. With
// `all_variables`, those that are away take their part, too.
int64_t AvailableBytes(const GraphDef& graph, double share = 1.0, bool all_variables = false) {
  std::set<int> cpus = {0}, gpus;
  for (const tensorflow::NodeDef& node : graph.node()) {
    tensorflow::DeviceNameUtils::ParsedName device;
    if (!tensorflow::DeviceNameUtils::ParseFullName(node.device(), &device) || !device.has_id) {
      continue;
    }
    if (device.type == tensorflow::DEVICE_GPU) gpus.insert(kFirstGpu + device.id);
    if (device.type == tensorflow::DEVICE_CPU) cpus.insert(device.id);
  }
  int64_t available_bytes = std::numeric_limits<int64_t>::max();
  for (int device : gpus.empty() ? cpus : gpus) {
    DeviceAllocator* allocator = AllocatorOf(device);
    if (allocator == nullptr || !allocator->budget()->HasBudget()) continue;
    const auto most_bytes = static_cast<int64_t>(
        share * static_cast<double>(allocator->budget()->Stats().budget_bytes));
    const int64_t away_bytes = all_variables ? allocator->guard()->BytesAway() : 0;
    const int64_t free_bytes = most_bytes - allocator->GetStats()->bytes_in_use - away_bytes;
    available_bytes = std::min(available_bytes, std::max(free_bytes, int64_t{0}));
  }
  return available_bytes;
}

bool HasGradients(const GraphIndex& index) {
  for (int n = 0; n < index.size(); ++n) {
    if (index.IsBackward(n)) return true;
  }
  return false;
}

// Return whether the graph has a backward part or assigns variables.
bool Trains(const GraphIndex& index) {
  for (int n = 0; n < index.size(); ++n) {
    if (index.IsBackward(n) || index.IsUpdate(n)) return true;
  }
  return false;
}

class SwapOptimizer : public tensorflow::grappler::CustomGraphOptimizer {
 public:
  std::string name() const override { return "tfswap"; }
  bool UsesFunctionLibrary() const override { return true; }

  absl::Status Init(const tensorflow::RewriterConfig_CustomGraphOptimizer* config) override {
    // An invalid plan must not stop the model: it is reported with each graph instead.
    auto it = config == nullptr ? decltype(config->parameter_map().end()){}
                                : config->parameter_map().find("plan");
    if (config == nullptr || it == config->parameter_map().end()) {
      unread_ = absl::InvalidArgumentError("the optimizer's parameter_map has no 'plan'");
    } else {
      absl::StatusOr<PlanSpec> plan = ParsePlan(it->second.s(), &plan_.label);
      unread_ = plan.status();
      if (plan.ok()) plan_ = *std::move(plan);
    }
    // The budget still applies: use on-demand swaps, which need no plan.
    if (!unread_.ok()) plan_.unmatched = Unmatched::kBootstrap;
    return absl::OkStatus();
  }

  absl::Status Optimize(Cluster* cluster, const GrapplerItem& given, GraphDef* optimized) override {
    *optimized = given.graph;
    // Act only after TensorFlow's last round: the graph that is fingerprinted, planned and
    // rewritten is then the one that runs, and no later Grappler pass sees a copy op.
    if (++rounds_ < Rounds()) return absl::OkStatus();
    const std::optional<ConfigProto> passes = PassesConfig();
    if (passes.has_value() && !IsOptimized(given.graph)) {
      absl::StatusOr<GraphDef> graph = RunTensorFlowPasses(cluster, given, *passes);
      if (!graph.ok()) return graph.status();
      *optimized = *std::move(graph);
    }
    if (optimized->node_size() < kMinNodes || IsRewritten(*optimized) ||
        !given.optimization_options().allow_non_differentiable_rewrites) {
      return absl::OkStatus();
    }
    // Signatures of functions are enough here, and bodies would be copied often.
    tensorflow::FunctionDefLibrary library;
    library.Swap(optimized->mutable_library());
    *optimized->mutable_library() = Signatures(library);
    RewriteItem(given.WithGraph(GraphDef(*optimized)), optimized);
    optimized->mutable_library()->Swap(&library);
    return absl::OkStatus();
  }

 private:
  // Return the config for TensorFlow's own passes if they do not run by themselves
  // (hooks/plan_session.py).
  std::optional<ConfigProto> PassesConfig() const {
    const RewriterConfig& rewrites = config_proto_.graph_options().rewrite_options();
    for (const auto& optimizer : rewrites.custom_optimizers()) {
      const auto options = optimizer.parameter_map().find("rewrite_options");
      if (optimizer.name() != kPasses || options == optimizer.parameter_map().end()) continue;
      ConfigProto config = config_proto_;
      RewriterConfig* passes = config.mutable_graph_options()->mutable_rewrite_options();
      if (passes->ParseFromString(options->second.s())) return config;
    }
    return std::nullopt;
  }

  // Rewrite a graph that TensorFlow's passes are done with.
  void RewriteItem(const GrapplerItem& item, GraphDef* optimized) {
    PassRecord record;
    record.function = item.id;
    record.label = plan_.label;
    const GraphDef graph = Prepared(InSections(item, &record));
    record.nodes = graph.node_size();
    record.fingerprint = Fingerprint(graph);
    record.portable = PortableFingerprint(graph);
    absl::StatusOr<GraphDef> result = Run(item, graph, &record);
    if (!result.ok()) {
      const std::string reason(result.status().message());
      LOG(WARNING) << "tfswap: the plan was NOT applied to " << item.id << ", which runs without "
                   << "an entry in the plan: " << reason;
      result = RunWithoutEntry(graph, &record);
      if (!result.ok()) record.swaps = 0;
      record.outcome = "refused";
      record.reason = reason;
    }
    if (record.trains && record.outcome != "left") AddFloors(item, &record);
    if (result.ok()) {
      *optimized = *std::move(result);
      Mark(record.fingerprint, optimized);
    }
    LogPass(std::move(record));
  }

  // Smaller tensors are not swapped. For a graph with an automatically chosen number of sections
  // the limit is the one that SwapPlan.in_sections computes.
  int64_t MinBytes(int64_t sections) const {
    constexpr int64_t kMinBytes = 1 << 20, kMinBytesOfParts = 1 << 17;
    if (!plan_.chooses) return plan_.min_bytes;
    return std::min(plan_.min_bytes, std::max(kMinBytes / sections, kMinBytesOfParts));
  }

  // Return the graph that is fingerprinted and planned.
  GraphDef Prepared(const GraphDef& given) const {
    GraphDef graph = WithRowReads(WithoutLargeConstants(given));
    if (!plan_.stream_weights) return graph;
    const tensorflow::FunctionLibraryDefinition functions(tensorflow::OpRegistry::Global(),
                                                          graph.library());
    const absl::StatusOr<GraphIndex> index = GraphIndex::Build(graph, functions);
    return index.ok() ? WithBackwardWeights(*index, graph) : graph;
  }

  // Return a changed graph; the graph itself if it cannot be indexed.
  static GraphDef Changed(const GraphDef& graph, GraphDef (*change)(const GraphIndex&)) {
    const tensorflow::FunctionLibraryDefinition functions(tensorflow::OpRegistry::Global(),
                                                          graph.library());
    const absl::StatusOr<GraphIndex> index = GraphIndex::Build(graph, functions);
    return index.ok() ? change(*index) : graph;
  }

  // Return a graph whose loops and sums were changed.
  static GraphDef WithLoops(const GraphDef& graph, GraphDef (*change)(const GraphIndex&)) {
    const GraphDef in_turn = HasLongSums(graph) ? Changed(graph, &WithAddendsInTurn) : graph;
    return HasLists(in_turn) ? Changed(in_turn, change) : in_turn;
  }

  // Return the graph that runs unless it fits.
  static GraphDef Movable(const GraphDef& graph) { return WithLoops(graph, &WithMovableLists); }

  // Return the graph that an entry applies to. Without swaps, nothing has to be movable, but loops
  // and sums must need no more than the recorded ones.
  static GraphDef Planned(const FunctionSpec& entry, const GraphDef& graph) {
    const bool changes = !entry.swaps.empty() || !entry.recomputes.empty() || entry.reserve;
    return changes ? Movable(graph) : WithLoops(graph, &WithFewIterations);
  }

  bool HasEntry(const GraphDef& graph) const {
    return Entry(Fingerprint(Prepared(graph))) != nullptr;
  }

  // Apply the sections of the plan. If the plan has no entry for the resulting graph and `chooses`
  // is set, choose the number of sections from the graph.
  absl::StatusOr<SectionChoice> Choice(const GrapplerItem& item) const {
    if (plan_.chooses && plan_.functions.empty()) {
      return ChooseSections(item, AvailableBytes(item.graph));
    }
    absl::StatusOr<SectionChoice> planned = ApplySections(item, plan_.sections, plan_.batch);
    if (!plan_.chooses || !planned.ok()) return planned;
    // The sections are at most as large as the planned ones.
    if (planned->examples > 0 && planned->examples < plan_.batch) return planned;
    if (HasEntry(planned->ops == 0 ? item.graph : planned->graph)) return planned;
    return ChooseSections(item, AvailableBytes(item.graph));
  }

  // Return the graph on sections of the batch if the plan asks for it and the shapes allow it.
  GraphDef InSections(const GrapplerItem& item, PassRecord* record) {
    if (plan_.sections <= 1 && !plan_.chooses) return item.graph;
    absl::StatusOr<SectionChoice> choice = Choice(item);
    if (!choice.ok()) {
      LOG(WARNING) << "tfswap: " << item.id
                   << " runs without sections: " << choice.status().message();
      return item.graph;
    }
    record->sections = choice->sections;
    record->examples = choice->examples;
    record->floors = std::move(choice->floors);
    record->sectioned_ops = choice->ops;
    return choice->ops == 0 ? item.graph : std::move(choice->graph);
  }

  // Record the floors of a graph that trains, whether it uses sections or not.
  static void AddFloors(const GrapplerItem& item, PassRecord* record) {
    if (HasFloors(record->fingerprint)) return;
    absl::StatusOr<std::vector<SectionFloor>> floors = FloorsOf(item);
    if (floors.ok()) record->floors = *std::move(floors);
  }

  int Rounds() const {
    const auto rounds = config_proto_.graph_options().rewrite_options().meta_optimizer_iterations();
    return rounds == RewriterConfig::ONE ? 1 : 2;
  }

  const FunctionSpec* Entry(const std::string& fingerprint) const {
    for (const FunctionSpec& function : plan_.functions) {
      if (function.fingerprint == fingerprint) return &function;
    }
    return nullptr;
  }

  // A graph with the order edges that lower its peak without any copies.
  struct Ordering {
    GraphDef graph;  // includes the late broadcasts and the order of sums
    GraphIndex index;
    Edges late_broadcasts, delays, keep_ups, chain;
    GraphDef in_turn;  // with the delays, keep-ups and the chain, too
    GraphIndex clock;  // of that graph: an op is where it runs
  };

  absl::StatusOr<std::unique_ptr<Ordering>> Ordered(
      const GraphDef& graph, const GraphIndex& index,
      const tensorflow::FunctionLibraryDefinition& functions, const Edges& sums = {}) const {
    auto ordering = std::make_unique<Ordering>();  // the index points into the graph
    ordering->late_broadcasts = LateBroadcasts(index);
    ordering->graph = WithEdges(index, graph, ordering->late_broadcasts);
    ordering->graph = WithEdges(index, std::move(ordering->graph), sums);
    absl::StatusOr<GraphIndex> ordered = GraphIndex::Build(ordering->graph, functions);
    if (!ordered.ok()) return ordered.status();
    ordering->index = *std::move(ordered);
    ordering->delays = Delays(ordering->index);
    // In a graph without training, variables may be swapped by the caller without an entry in the
    // plan.
    const bool streams = plan_.stream_weights || !Trains(ordering->index);
    if (streams) Append(LateReads(ordering->index), &ordering->delays);
    GraphDef held_back = WithEdges(ordering->index, ordering->graph, ordering->delays);
    if (streams) {
      const absl::StatusOr<GraphIndex> late = GraphIndex::Build(held_back, functions);
      if (!late.ok()) return late.status();
      ordering->keep_ups = UpdateTurns(ordering->index, *late);
    } else {
      ordering->keep_ups = PromptUpdates(ordering->index);
    }
    held_back = WithEdges(ordering->index, std::move(held_back), ordering->keep_ups);
    absl::StatusOr<GraphIndex> unchained = GraphIndex::Build(held_back, functions);
    if (!unchained.ok()) return unchained.status();
    unchained->AddRacesOf(ordering->index);
    ordering->chain = Chain(*unchained);
    if (streams && !unchained->ManagesGpu()) {
      const Edges reads = ReadsInTurn(*unchained, ordering->chain);
      held_back = WithEdges(ordering->index, std::move(held_back), reads);
      Append(reads, &ordering->delays);
    }
    ordering->in_turn = WithEdges(ordering->index, std::move(held_back), ordering->chain);
    absl::StatusOr<GraphIndex> clock = GraphIndex::Build(ordering->in_turn, functions);
    if (!clock.ok()) return clock.status();
    ordering->clock = *std::move(clock);
    ordering->clock.AddRacesOf(ordering->index);
    return ordering;
  }

  // Return on-demand swaps that agree with the order that the plan imposes: the graph alone may put
  // an op before another that the plan runs later. `planned` is the graph with the plan's swaps.
  static std::vector<SwapSpec> OnDemand(const Ordering& ordering, const GraphDef& planned,
                                        const tensorflow::FunctionLibraryDefinition& functions) {
    const GraphDef graph =
        WithEdges(ordering.index, ordering.graph, EdgesThroughSwaps(ordering.index, planned));
    absl::StatusOr<GraphIndex> index = GraphIndex::Build(graph, functions);
    if (!index.ok()) return {};
    index->AddRacesOf(ordering.index);
    return Bootstrap(*index, Chain(*index));
  }

  static std::string Described(const Ordering& ordering) {
    std::string description = Describe(ordering.index);
    AddEdges("#broadcast", ordering.late_broadcasts, &description);
    AddEdges("#delay", ordering.delays, &description);
    AddEdges("#keepup", ordering.keep_ups, &description);
    AddEdges("#chain", ordering.chain, &description);
    AddEdges("#trigger", RacingTriggers(ordering.clock), &description);
    return description;
  }

  absl::StatusOr<GraphDef> AsRemembered(const std::string& path, const GraphDef& given,
                                        PassRecord* record) const {
    const absl::StatusOr<FunctionSpec> entry = ReadRemembered(path, record->fingerprint);
    if (!entry.ok()) return entry.status();
    return AsPlanned(*entry, Planned(*entry, given), record);
  }

  absl::StatusOr<GraphDef> Run(const GrapplerItem& item, const GraphDef& given,
                               PassRecord* record) const {
    if (!unread_.ok()) return unread_;
    const FunctionSpec* entry = Entry(record->fingerprint);
    if (entry != nullptr) return AsPlanned(*entry, Planned(*entry, given), record);
    const auto remembered = plan_.remembered.find(record->fingerprint);
    if (remembered != plan_.remembered.end()) {
      PassRecord with_plan = *record;
      absl::StatusOr<GraphDef> result = AsRemembered(remembered->second, given, &with_plan);
      if (result.ok()) {
        *record = std::move(with_plan);
        return result;
      }
      LOG(WARNING) << "tfswap: " << record->function << " runs with on-demand swaps, since its "
                   << "remembered plan cannot be applied: " << result.status().message();
    }
    if (Fits(item, given, record)) return given;
    return Execute(nullptr, Movable(given), record, &record->description);
  }

  // Return whether a graph without an entry fits in any order of its ops, and note that.
  bool Fits(const GrapplerItem& item, const GraphDef& graph, PassRecord* record) const {
    if (!plan_.leaves_fitting || record->sectioned_ops > 0) return false;
    const tensorflow::FunctionLibraryDefinition functions(tensorflow::OpRegistry::Global(),
                                                          graph.library());
    const absl::StatusOr<GraphIndex> index = GraphIndex::Build(graph, functions);
    if (!index.ok()) return false;
    const bool trains = HasGradients(*index);
    const int64_t bytes =
        MostBytes(item.WithGraph(GraphDef(graph)), *index, trains ? plan_.examples : 0);
    record->most_bytes = std::max<int64_t>(bytes, 0);
    if (bytes < 0 || bytes > AvailableBytes(graph, kClearlyFits, /*all_variables=*/true)) {
      return false;
    }
    record->trains = trains;
    record->outcome = "left";
    return true;
  }

  // For a graph whose entry was refused: treat it like a graph without an entry, because the budget
  // still applies.
  absl::StatusOr<GraphDef> RunWithoutEntry(const GraphDef& graph, PassRecord* record) const {
    record->planned_description.clear();
    if (plan_.unmatched == Unmatched::kLeave) {
      return absl::NotFoundError("the plan leaves graphs without an entry unchanged");
    }
    return Execute(nullptr, Movable(graph), record, &record->description);
  }

  absl::StatusOr<GraphDef> AsPlanned(const FunctionSpec& entry, const GraphDef& given,
                                     PassRecord* record) const {
    if (entry.recomputes.empty()) return Execute(&entry, given, record, &record->description);
    const tensorflow::FunctionLibraryDefinition functions(tensorflow::OpRegistry::Global(),
                                                          given.library());
    const absl::StatusOr<GraphIndex> index = GraphIndex::Build(given, functions);
    if (!index.ok()) return index.status();
    if (plan_.describe) {
      const absl::StatusOr<std::unique_ptr<Ordering>> ordering = Ordered(given, *index, functions);
      if (!ordering.ok()) return ordering.status();
      record->description = Described(**ordering);
    }
    const GraphDef in_order = WithEdges(*index, given, OfSums(*index, entry.order));
    const absl::StatusOr<GraphDef> recomputing =
        WithRecomputes(in_order, functions, entry.recomputes);
    if (!recomputing.ok()) return recomputing.status();
    return Execute(&entry, *recomputing, record, &record->planned_description);
  }

  // Apply an entry to a graph that contains its clones already, or (null) do what the plan asks for
  // graphs without an entry.
  absl::StatusOr<GraphDef> Execute(const FunctionSpec* entry, const GraphDef& graph,
                                   PassRecord* record, std::string* description) const {
    const tensorflow::FunctionLibraryDefinition functions(tensorflow::OpRegistry::Global(),
                                                          graph.library());
    absl::StatusOr<GraphIndex> as_given = GraphIndex::Build(graph, functions);
    if (!as_given.ok()) return as_given.status();
    absl::StatusOr<std::unique_ptr<Ordering>> ordered = Ordered(graph, *as_given, functions);
    if (!ordered.ok()) return ordered.status();
    if (plan_.describe) {
      record->trains = record->trains || HasGradients((*ordered)->index);
      *description = Described(**ordered);
    }
    const Edges sums = entry == nullptr ? Edges() : OfSums(*as_given, entry->order);
    if (!sums.empty()) ordered = Ordered(graph, *as_given, functions, sums);
    if (!ordered.ok()) return ordered.status();
    const Ordering* ordering = ordered->get();
    const int64_t min_bytes = MinBytes(record->sections);
    if (entry != nullptr) {
      const bool changes = !entry->swaps.empty() || !entry->recomputes.empty();
      record->outcome = changes ? "planned" : "left";
      record->swaps = entry->swaps.size();
      // A step without swaps stays unchanged except for the order that its planned addresses need.
      if (!changes && !entry->reserve) return Rewrite(graph, *as_given, {}, entry->order, 0);
      std::vector<SwapSpec> swaps = entry->swaps;
      absl::StatusOr<GraphDef> planned =
          Rewrite(ordering->graph, ordering->index, swaps, entry->order, min_bytes);
      if (!planned.ok() || !entry->reserve) return planned;
      AddReserve(OnDemand(*ordering, *planned, functions), &swaps);
      return Rewrite(ordering->graph, ordering->index, swaps, entry->order, min_bytes);
    }
    if (plan_.unmatched == Unmatched::kLeave) {
      record->outcome = "left";
      return graph;
    }
    const std::vector<SwapSpec> swaps = Bootstrap(ordering->clock, ordering->chain);
    record->outcome = "bootstrapped";
    record->swaps = swaps.size();
    Edges order = ordering->delays;
    Append(ordering->keep_ups, &order);
    Append(ordering->chain, &order);
    return Rewrite(ordering->graph, ordering->index, swaps, order, min_bytes);
  }

  PlanSpec plan_;
  absl::Status unread_;  // why the plan could not be read
  int rounds_ = 0;
};

REGISTER_GRAPH_OPTIMIZER_AS(SwapOptimizer, "tfswap");

}  // namespace
}  // namespace tfswap
