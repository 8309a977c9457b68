#include "grappler/index/inferred_graph.h"

#include <algorithm>
#include <string>
#include <utility>

#include "grappler/index/tensor_bytes.h"
#include "tensorflow/core/framework/function.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/grappler/costs/graph_properties.h"

namespace tfswap {

using ::tensorflow::NodeDef;
using ::tensorflow::grappler::GraphProperties;
using ::tensorflow::grappler::GrapplerItem;

namespace {

constexpr int kImageRank = 4;

bool IsIterator(const NodeDef& node) { return node.op() == "IteratorGetNext"; }

bool IsDataSource(const NodeDef& node) {
  return IsIterator(node) || node.op() == "_Arg" || node.op() == "Placeholder";
}

}  // namespace

int64_t Elements(const Dims& dims) {
  if (!dims) return -1;
  int64_t count = 1;
  for (int64_t dim : *dims) {
    if (dim < 0) return -1;
    count *= dim;
  }
  return count;
}

absl::StatusOr<std::unique_ptr<InferredGraph>> InferredGraph::Of(const GrapplerItem& item) {
  auto made = std::unique_ptr<InferredGraph>(new InferredGraph(item.graph));
  const tensorflow::FunctionLibraryDefinition functions(tensorflow::OpRegistry::Global(),
                                                        item.graph.library());
  absl::StatusOr<GraphIndex> index = GraphIndex::Build(item.graph, functions);
  if (!index.ok()) return index.status();
  made->index_ = *std::move(index);
  GraphProperties properties(item);
  const absl::Status inferred = properties.InferStatically(/*assume_valid_feeds=*/true);
  if (!inferred.ok()) return inferred;
  made->shapes_.resize(made->index_.size());
  made->bytes_.resize(made->index_.size());
  for (int n = 0; n < made->index_.size(); ++n) {
    for (const auto& output : properties.GetOutputProperties(made->index_.node(n).name())) {
      Dims dims;
      if (!output.shape().unknown_rank()) {
        dims.emplace();
        for (const auto& dim : output.shape().dim())
          dims->push_back(std::max<int64_t>(dim.size(), -1));
      }
      made->shapes_[n].push_back(std::move(dims));
      made->bytes_[n].push_back(std::max<int64_t>(TensorBytes(output), 0));
    }
  }
  made->FindBatch();
  return made;
}

const Dims& InferredGraph::DimsOf(TensorId tensor) const {
  static const auto* unknown = new Dims();
  const auto& outputs = shapes_[tensor.node];
  return tensor.port < static_cast<int>(outputs.size()) ? outputs[tensor.port] : *unknown;
}

int64_t InferredGraph::BytesOf(TensorId tensor) const {
  const auto& outputs = bytes_[tensor.node];
  const bool known = tensor.port < static_cast<int>(outputs.size());
  return known && index_.InDeviceMemory(tensor) ? outputs[tensor.port] : 0;
}

void InferredGraph::FindBatch() {
  is_batch_source_.assign(index_.size(), false);
  const auto brings = [&](int n, bool iterator) {
    const NodeDef& node = index_.node(n);
    return index_.context(n) == 0 && (iterator ? IsIterator(node) : IsDataSource(node));
  };
  bool iterator = false;
  for (int n = 0; n < index_.size(); ++n) iterator = iterator || brings(n, true);
  int64_t most = 0;
  for (int n = 0; n < index_.size(); ++n) {
    if (!brings(n, iterator)) continue;
    is_batch_source_[n] = true;
    for (const Dims& dims : shapes_[n]) {
      if (!dims || dims->empty() || Elements(dims) <= most) continue;
      most = Elements(dims);
      const bool images = dims->size() == kImageRank;
      batch_ = {dims->front(), images ? (*dims)[1] : 0, images ? (*dims)[2] : 0};
    }
  }
}

}  // namespace tfswap
