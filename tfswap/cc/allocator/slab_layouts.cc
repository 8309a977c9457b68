#include "allocator/slab_layouts.h"

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "core/util/graph_mark.h"
#include "tensorflow/core/framework/node_def.pb.h"

namespace tfswap {

namespace {

constexpr size_t kKnownKernels = size_t{1} << 16;
constexpr int kPlaceBits = 24;
constexpr uint64_t kPlaceMask = (uint64_t{1} << kPlaceBits) - 1;
constexpr int32_t kMaxOrdinals = 4096;
constexpr int kMaxShapes = 64;
// For all ops of a layout together. An op has as many slots as its highest ordinal requires.
constexpr size_t kMaxSlots = size_t{1} << 22;
constexpr size_t kMaxTextBytes = size_t{256} << 20;
constexpr absl::string_view kNextShape = "#";

uint64_t Spread(const void* ptr) {
  return (reinterpret_cast<uintptr_t>(ptr) >> 4) * 0x9e3779b97f4a7c15;
}

}  // namespace

const Slot* PlannedOp::Find(int kind, uint32_t ordinal, int64_t bytes) const {
  const std::vector<Slot>& known = slots[kind];
  const int shapes = graph == nullptr ? 1 : graph->shapes;
  const size_t first = size_t{ordinal} * shapes;
  if (first >= known.size()) return nullptr;
  const Slot* slot = &known[first];
  if (shapes > 1) {
    slot += graph->running.load(std::memory_order_relaxed);
    if (slot->bytes != bytes && slot->offset != kOutside) {
      for (int shape = 0; shape < shapes; ++shape) {
        const Slot& other = known[first + shape];
        if (other.bytes != bytes || other.offset < 0) continue;
        graph->running.store(shape, std::memory_order_relaxed);
        slot = &other;
        break;
      }
    }
  }
  return slot->offset == -1 ? nullptr : slot;
}

SlabLayouts::SlabLayouts() : blocks_(kPlaceMask / kBlockOps), known_(kKnownKernels) {}

SlabLayouts::~SlabLayouts() {
  for (std::atomic<PlannedOp*>& block : blocks_) delete[] block.load();
}

absl::Status SlabLayouts::Install(const std::string& graph, const std::string& text,
                                  int64_t granule_bytes) {
  if (text.size() > kMaxTextBytes) {
    return absl::InvalidArgumentError(absl::StrCat("a layout of ", text.size(), " bytes"));
  }
  Layout layout;
  layout.graph = std::make_unique<PlannedGraph>();
  std::vector<PlannedOp> ops;
  size_t slots_made = 0;
  const std::vector<absl::string_view> lines = absl::StrSplit(text, '\n', absl::SkipEmpty());
  const auto shapes = std::count(lines.begin(), lines.end(), kNextShape) + 1;
  if (shapes > kMaxShapes) {
    return absl::InvalidArgumentError(absl::StrCat("a layout of ", shapes, " shapes"));
  }
  layout.graph->shapes = static_cast<int>(shapes);
  int shape = 0;
  std::lock_guard<std::mutex> lock(mu_);
  for (const absl::string_view line : lines) {
    if (line == kNextShape) {
      ++shape;
      continue;
    }
    const std::vector<absl::string_view> fields = absl::StrSplit(line, '\t');
    int32_t kind, ordinal;
    Slot slot;
    if (fields.size() != 5 || fields[0].empty() || !absl::SimpleAtoi(fields[1], &kind) ||
        !absl::SimpleAtoi(fields[2], &ordinal) || !absl::SimpleAtoi(fields[3], &slot.offset) ||
        !absl::SimpleAtoi(fields[4], &slot.bytes) || kind < 0 || kind >= kBufferKinds ||
        ordinal < 0 || ordinal >= kMaxOrdinals || slot.bytes <= 0 ||
        slot.bytes > int64_t{1} << 50 || slot.offset > int64_t{1} << 50 ||
        (slot.offset < 0 ? slot.offset != kOutside : slot.offset % granule_bytes != 0)) {
      return absl::InvalidArgumentError(
          absl::StrCat("the layout's line '", line, "' is not a slot"));
    }
    auto [it, is_new] = layout.ops.emplace(std::string(fields[0]), 0);
    if (is_new) {
      it->second = static_cast<uint32_t>(ops.size());
      ops.emplace_back();
      ops.back().graph = layout.graph.get();
    }
    std::vector<Slot>& slots = ops[it->second].slots[kind];
    const auto place = static_cast<size_t>(ordinal * shapes + shape);
    if (slots.size() <= place) {
      const auto wanted = static_cast<size_t>((ordinal + 1) * shapes);
      slots_made += wanted - slots.size();
      if (slots_made > kMaxSlots) {
        return absl::InvalidArgumentError(absl::StrCat("the layout's line '", line,
                                                       "' is one too many: its ops would have ",
                                                       slots_made, " places"));
      }
      slots.resize(wanted);
    }
    slots[place] = slot;
    if (slot.offset >= 0) layout.height = std::max(layout.height, slot.offset + slot.bytes);
  }
  if (ops.size() > free_places_.size() + (MaxPlaces() - next_place_)) {
    return absl::ResourceExhaustedError("too many layouts are installed in this process");
  }
  std::vector<uint32_t> places;
  for (PlannedOp& op : ops) {
    if (free_places_.empty()) {
      free_places_.push_back(next_place_++);
      std::atomic<PlannedOp*>& block = blocks_[free_places_.back() / kBlockOps];
      if (block.load() == nullptr) block.store(new PlannedOp[kBlockOps], std::memory_order_release);
    }
    places.push_back(free_places_.back());
    free_places_.pop_back();
    *At(places.back()) = std::move(op);
  }
  for (auto& [name, place] : layout.ops) place = places[place];
  Retire(graph);
  layouts_[graph] = std::move(layout);
  Changed();
  return absl::OkStatus();
}

void SlabLayouts::Remove(const std::string& graph) {
  std::lock_guard<std::mutex> lock(mu_);
  Retire(graph);
  Changed();
}

void SlabLayouts::Retire(const std::string& graph) {
  const auto known = layouts_.find(graph);
  if (known == layouts_.end()) return;
  retired_graphs_.push_back(std::move(known->second.graph));
  for (const auto& [op, place] : known->second.ops) retired_places_.push_back(place);
  layouts_.erase(known);
}

void SlabLayouts::Clear() {
  std::lock_guard<std::mutex> lock(mu_);
  while (!layouts_.empty()) Retire(std::string(layouts_.begin()->first));
  Changed();
}

void SlabLayouts::Changed() {
  int64_t height = 0;
  for (const auto& [graph, layout] : layouts_) height = std::max(height, layout.height);
  height_.store(height);
  active_.store(!layouts_.empty());
  for (std::atomic<uint64_t>& word : known_) word.store(0);
  Reclaim();
}

void SlabLayouts::Reclaim() {
  // A reader that starts after this finds the words that Changed() has cleared, so nothing retired.
  if (readers_.load() != 0) return;
  for (const uint32_t place : retired_places_) *At(place) = PlannedOp();
  free_places_.insert(free_places_.end(), retired_places_.begin(), retired_places_.end());
  retired_places_.clear();
  retired_graphs_.clear();
}

PlannedOpRef SlabLayouts::Find(const tensorflow::OpKernel& kernel) {
  PlannedOpRef found(&readers_);
  const uint64_t hash = Spread(&kernel);
  std::atomic<uint64_t>& word = known_[hash >> 48];
  const uint64_t tag = hash & ~kPlaceMask;
  const uint64_t seen = word.load();
  uint32_t place;
  if ((seen & ~kPlaceMask) == tag) {
    place = static_cast<uint32_t>(seen & kPlaceMask);
  } else {
    const auto& attributes = kernel.def().attr();
    const auto graph = attributes.find(kGraphAttribute);
    std::lock_guard<std::mutex> lock(mu_);
    place = graph == attributes.end() ? LookUpUnmarked(kernel.name())
                                      : LookUp(graph->second.s(), kernel.name());
    word.store(tag | place);  // under the lock, so that no word refers to a retired place
  }
  if (place != 0) found.op_ = At(place);
  return found;
}

PlannedOpRef SlabLayouts::FindByName(const std::string& graph, const std::string& op) {
  PlannedOpRef found(&readers_);
  std::lock_guard<std::mutex> lock(mu_);
  const uint32_t place = LookUp(graph, op);
  if (place != 0) found.op_ = At(place);
  return found;
}

uint32_t SlabLayouts::LookUp(const std::string& graph, const std::string& op) {
  const auto layout = layouts_.find(graph);
  if (layout == layouts_.end()) return 0;
  last_graph_ = graph;
  const auto found = layout->second.ops.find(op);
  return found == layout->second.ops.end() ? 0 : found->second;
}

uint32_t SlabLayouts::LookUpUnmarked(const std::string& op) {
  uint32_t place = 0;
  for (const auto& [graph, layout] : layouts_) {
    const auto found = layout.ops.find(op);
    // If several graphs have such an op, choose the running one: the last lookup was in it.
    if (found != layout.ops.end() && (place == 0 || graph == last_graph_)) place = found->second;
  }
  return place;
}

}  // namespace tfswap
