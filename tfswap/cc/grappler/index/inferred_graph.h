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

// The shape of the input batch: the largest tensor that enters the graph.
struct BatchShape {
  int64_t examples = 0;  // 0: unknown
  int64_t rows = 0;      // 0: not images
  int64_t columns = 0;
};

// A graph with its statically inferred shapes. The item must outlive it.
class InferredGraph {
 public:
  static absl::StatusOr<std::unique_ptr<InferredGraph>> Of(
      const tensorflow::grappler::GrapplerItem& item);

  const tensorflow::GraphDef& graph() const { return graph_; }
  const GraphIndex& index() const { return index_; }
  const std::vector<std::vector<Dims>>& shapes() const { return shapes_; }
  const Dims& DimsOf(TensorId tensor) const;
  // Bytes in the memory of the managed device; 0 if unknown or elsewhere.
  int64_t BytesOf(TensorId tensor) const;

  const BatchShape& batch() const { return batch_; }
  // Return whether the op is a source of the input batch.
  bool IsBatchSource(int n) const { return is_batch_source_[n]; }

 private:
  explicit InferredGraph(const tensorflow::GraphDef& graph) : graph_(graph) {}
  void FindBatch();

  const tensorflow::GraphDef& graph_;
  GraphIndex index_;
  std::vector<std::vector<Dims>> shapes_;
  std::vector<std::vector<int64_t>> bytes_;
  BatchShape batch_;
  std::vector<bool> is_batch_source_;
};

// Return the number of elements; -1 if it is unknown.
int64_t Elements(const Dims& dims);

}  // namespace tfswap

#endif  // TFSWAP_CC_GRAPPLER_INDEX_INFERRED_GRAPH_H_
