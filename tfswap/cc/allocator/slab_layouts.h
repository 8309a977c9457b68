#ifndef TFSWAP_CC_ALLOCATOR_SLAB_LAYOUTS_H_
#define TFSWAP_CC_ALLOCATOR_SLAB_LAYOUTS_H_

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "core/simulate/trace.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tfswap {

// A planned address.
struct Slot {
  // -1: no address is planned. -2 (kOutside): the block outlives the step (a variable's new value)
  // and gets no planned address.
  int64_t offset = -1;
  int64_t bytes = 0;
};
inline constexpr int64_t kOutside = -2;

// A graph that runs with tensors of several shapes (a smaller last batch) has slots for each shape.
// The sizes that its ops request identify the shape that is running.
struct PlannedGraph {
  int shapes = 1;
  std::atomic<int> running{0};  // the last shape that was identified
};

// The slots of one op's allocations in a run. For each kind: the first allocation for each shape,
// the second for each shape, and so on.
struct PlannedOp {
  PlannedGraph* graph = nullptr;  // null: one shape
  std::vector<Slot> slots[kBufferKinds];

  // Return the slot; null if none is planned.
  const Slot* Find(int kind, uint32_t ordinal, int64_t bytes) const;
};

// Refers to an op's slots, or to none. They do not change while it exists.
class PlannedOpRef {
 public:
  PlannedOpRef() = default;
  explicit PlannedOpRef(const PlannedOp* op) : op_(op) {}  // `op` must outlive the reference
  PlannedOpRef(PlannedOpRef&& other) noexcept { *this = std::move(other); }
  PlannedOpRef& operator=(PlannedOpRef&& other) noexcept {
    std::swap(op_, other.op_);
    std::swap(readers_, other.readers_);
    return *this;
  }
  ~PlannedOpRef() {
    if (readers_ != nullptr) readers_->fetch_sub(1);
  }

  explicit operator bool() const { return op_ != nullptr; }
  const PlannedOp* operator->() const { return op_; }

 private:
  friend class SlabLayouts;
  explicit PlannedOpRef(std::atomic<int64_t>* readers) : readers_(readers) {
    readers_->fetch_add(1);
  }

  const PlannedOp* op_ = nullptr;
  std::atomic<int64_t>* readers_ = nullptr;
};

// The slots of the ops of all graphs that have a layout. Thread-safe; Find() takes no lock for an
// op that has run before.
class SlabLayouts {
 public:
  SlabLayouts();
  ~SlabLayouts();

  // Install the graph's layout, or replace it. `text` has one line per slot: op, kind (0 output, 1
  // temporary, 2 other), ordinal, offset and bytes, separated by tabs. A line "#" ends each shape
  // but the last.
  absl::Status Install(const std::string& graph, const std::string& text, int64_t granule_bytes);
  void Remove(const std::string& graph);
  void Clear();

  bool active() const { return active_.load(std::memory_order_relaxed); }
  // Return the end of the highest slot of all layouts.
  int64_t height() const { return height_.load(); }
  // Return the op's slots; an empty reference if it has none.
  PlannedOpRef Find(const tensorflow::OpKernel& kernel);
  PlannedOpRef FindByName(const std::string& graph, const std::string& op);

 private:
  struct Layout {
    int64_t height = 0;
    std::unique_ptr<PlannedGraph> graph;
    std::unordered_map<std::string, uint32_t> ops;  // names to places
  };

  PlannedOp* At(uint32_t place) const {
    return blocks_[place / kBlockOps].load(std::memory_order_acquire) + place % kBlockOps;
  }
  uint32_t MaxPlaces() const { return static_cast<uint32_t>(blocks_.size()) * kBlockOps; }
  // Call these with `mu_` held.
  void Retire(const std::string& graph);
  uint32_t LookUp(const std::string& graph, const std::string& op);
  // Look up an op without a graph mark: oneDNN's layout pass omits it for some convolution
  // gradients.
  uint32_t LookUpUnmarked(const std::string& op);
  void Changed();
  // Free retired places if there are no readers; new readers cannot find them.
  void Reclaim();

  std::atomic<bool> active_{false};
  std::atomic<int64_t> height_{0};
  std::mutex mu_;
  std::map<std::string, Layout> layouts_;
  std::string last_graph_;  // the graph of the last lookup
  // By place, in blocks; place 0 has no slots.
  static constexpr uint32_t kBlockOps = 4096;
  std::vector<std::atomic<PlannedOp*>> blocks_;
  uint32_t next_place_ = 1;
  std::vector<uint32_t> free_places_;
  // Of replaced or removed layouts, which earlier lookups may still be reading.
  std::vector<std::unique_ptr<PlannedGraph>> retired_graphs_;
  std::vector<uint32_t> retired_places_;
  std::atomic<int64_t> readers_{0};
  // Cached lookups by kernel address: a tag and a place in one word. If another kernel has since
  // been created at the address, it gets the wrong slots, which the slab tolerates.
  std::vector<std::atomic<uint64_t>> known_;
};

}  // namespace tfswap

#endif  // TFSWAP_CC_ALLOCATOR_SLAB_LAYOUTS_H_
