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

// A planned place.
struct Slot {
  // -1: none is planned. -2: it outlives the step (a variable's new value) and stays out of the
  // slab.
  int64_t offset = -1;
  int64_t bytes = 0;
};
inline constexpr int64_t kOutside = -2;

// A graph that runs for tensors of several shapes (a last batch that is smaller) has places for
// each, and the one that runs is told by the sizes that its ops ask for.
struct PlannedGraph {
  int shapes = 1;
  std::atomic<int> running{0};  // the shape that was met last
};

// The places of what one op allocates in a run: by kind, the first for each shape, the second for
// each shape, ...
struct PlannedOp {
  PlannedGraph* graph = nullptr;  // null: one shape
  std::vector<Slot> slots[kBufferKinds];

  // Null if no place is planned.
  const Slot* Find(int kind, uint32_t ordinal, int64_t bytes) const;
};

// An op's places, or none: they stay what they are while this lives.
class PlannedOpRef {
 public:
  PlannedOpRef() = default;
  explicit PlannedOpRef(const PlannedOp* op) : op_(op) {}  // of one that outlives it
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

// Which slots ops have, of all graphs that have a layout. Thread-safe; Find() takes no lock for an
// op that ran before.
class SlabLayouts {
 public:
  SlabLayouts();
  ~SlabLayouts();

  // `text`: a line a slot: op, kind (0 output, 1 temporary, 2 other), ordinal, offset, bytes,
  // parted by tabs; a line "#" behind each shape but the last. Replaces the graph's layout.
  absl::Status Install(const std::string& graph, const std::string& text, int64_t granule_bytes);
  void Remove(const std::string& graph);
  void Clear();

  bool active() const { return active_.load(std::memory_order_relaxed); }
  // The end of the highest slot of all layouts.
  int64_t height() const { return height_.load(); }
  // None for an op without slots.
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
  uint32_t MostPlaces() const { return static_cast<uint32_t>(blocks_.size()) * kBlockOps; }
  // With `mu_` held.
  void Retire(const std::string& graph);
  uint32_t LookUp(const std::string& graph, const std::string& op);
  // Of an op without a mark: oneDNN's layout pass gives some convolutions' gradients none.
  uint32_t LookUpUnmarked(const std::string& op);
  void Changed();
  // Frees what was retired, if nobody reads: nobody can come upon it any more.
  void Reclaim();

  std::atomic<bool> active_{false};
  std::atomic<int64_t> height_{0};
  std::mutex mu_;
  std::map<std::string, Layout> layouts_;
  std::string last_graph_;  // that an op was looked up in
  // By place, in blocks; place 0 has no slots.
  static constexpr uint32_t kBlockOps = 4096;
  std::vector<std::atomic<PlannedOp*>> blocks_;
  uint32_t next_place_ = 1;
  std::vector<uint32_t> free_places_;
  // Of layouts that were replaced: whoever had looked them up before may still read them.
  std::vector<std::unique_ptr<PlannedGraph>> retired_graphs_;
  std::vector<uint32_t> retired_places_;
  std::atomic<int64_t> readers_{0};
  // What kernels were looked up, by address: a tag and a place in one word. A kernel may be gone
  // and another one at its address: then slots are proposed that are not its own, which a slab
  // survives.
  std::vector<std::atomic<uint64_t>> known_;
};

}  // namespace tfswap

#endif  // TFSWAP_CC_ALLOCATOR_SLAB_LAYOUTS_H_
