#ifndef TFSWAP_CC_GRAPPLER_INDEX_INFERRED_GRAPH_H_
#define TFSWAP_CC_GRAPPLER_INDEX_INFERRED_GRAPH_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "grappler/index/graph_index.h"
#include "grappler/sections/split_rule.h"
#include "tensorflow/core/grappler/grappler_item.h"

namespace tfswap {

// The largest tensor that is brought into a graph: a batch of examples, in rows if it is images.
struct BatchShape {
  int64_t examples = 0;  // 0: not known
  int64_t rows = 0;      // 0: no images
  int64_t columns = 0;
};

// A graph with all shapes that can be known before it runs. The item must live as long.
class InferredGraph {
 public:
  static absl::StatusOr<std::unique_ptr<InferredGraph>> Of(
      const tensorflow::grappler::GrapplerItem& item);

  const tensorflow::GraphDef& graph() const { return graph_; }
  const GraphIndex& index() const { return index_; }
  const std::vector<std::vector<Dims>>& shapes() const { return shapes_; }
  const Dims& DimsOf(TensorId tensor) const;
  // In the managed device's memory; 0 where that is not known, or elsewhere.
  int64_t BytesOf(TensorId tensor) const;

  const BatchShape& batch() const { return batch_; }
  // Does the op bring a part of the batch into the graph?
  bool BringsBatch(int n) const { return brings_batch_[n]; }

 private:
  explicit InferredGraph(const tensorflow::GraphDef& graph) : graph_(graph) {}
  void FindBatch();

  const tensorflow::GraphDef& graph_;
  GraphIndex index_;
  std::vector<std::vector<Dims>> shapes_;
  std::vector<std::vector<int64_t>> bytes_;
  BatchShape batch_;
  std::vector<bool> brings_batch_;
};

// How many elements; -1 if that is not known.
int64_t Elements(const Dims& dims);

}  // namespace tfswap

#endif  // TFSWAP_CC_GRAPPLER_INDEX_INFERRED_GRAPH_H_
