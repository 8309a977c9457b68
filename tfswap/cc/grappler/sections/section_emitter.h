#ifndef TFSWAP_CC_GRAPPLER_SECTIONS_SECTION_EMITTER_H_
#define TFSWAP_CC_GRAPPLER_SECTIONS_SECTION_EMITTER_H_

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "grappler/index/graph_index.h"
#include "grappler/index/inferred_graph.h"
#include "grappler/sections/section_plan.h"
#include "tensorflow/core/framework/graph.pb.h"

namespace tfswap {

// Writes down the graph that a plan makes of another one: a copy of each op for each section, what
// cuts and joins tensors, and what has a stage's sections come one behind the other.
class SectionEmitter {
 public:
  SectionEmitter(const InferredGraph& graph, const SectionPlan& plan)
      : graph_(graph), index_(graph.index()), plan_(plan) {}

  tensorflow::GraphDef Emit();

 private:
  // When: a stage, and in it what the sections' copies of an op go by.
  struct Turn {
    int stage;
    int64_t slot;
    bool operator<(const Turn& other) const {
      return std::make_pair(stage, slot) < std::make_pair(other.stage, other.slot);
    }
  };

  void EmitCopies(int n);
  void EmitReader(int n);
  void AddBarriers();

  Turn TurnOf(int n, int64_t section) const { return {plan_.stage[n], section + plan_.delay[n]}; }
  std::string CopyName(int n, int64_t section) const;
  // What the names of nodes begin with that are added for a tensor.
  std::string BaseName(TensorId tensor) const;
  tensorflow::NodeDef* Add(const std::string& name, const std::string& op, int like);
  // One that comes in its turn.
  tensorflow::NodeDef* AddAt(Turn turn, const std::string& name, const std::string& op, int like);
  std::string AddInts(const std::string& name, const std::vector<int64_t>& values,
                      tensorflow::DataType type, const std::vector<int64_t>& shape, int like);
  std::string AddFactor(const std::string& name, float factor, int like);
  // What an op reads: names of inputs.
  std::string Input(int n, size_t i, int64_t section);
  std::string PieceOf(TensorId tensor, int axis, Piece piece, Turn turn);
  std::string Whole(TensorId tensor);
  std::string Joined(TensorId tensor, const Cut& cut);
  std::string Summed(TensorId tensor, const OutputPart& part);
  // A piece of what is named.
  std::string Sliced(const std::string& of, TensorId like, int axis, Piece piece,
                     const std::string& name, Turn turn);
  std::string Boxed(const std::string& of, TensorId like, const std::vector<int64_t>& begin,
                    const std::vector<int64_t>& size, const std::string& name, Turn turn);
  std::string Padded(const std::string& of, TensorId like, const std::vector<int64_t>& zeros,
                     const std::string& name, Turn turn);
  std::string Concatenated(const std::vector<std::string>& parts, TensorId like, int axis,
                           const std::string& name, std::optional<Turn> turn);
  const std::vector<int64_t>& DimsOf(TensorId tensor) const { return *graph_.DimsOf(tensor); }

  const InferredGraph& graph_;
  const GraphIndex& index_;
  const SectionPlan& plan_;
  tensorflow::GraphDef result_;
  std::set<std::string> added_;  // names of nodes of the result
  std::map<std::pair<int, int>, std::string> wholes_;
  std::map<Turn, std::vector<int>> members_;  // nodes of the result
};

}  // namespace tfswap

#endif  // TFSWAP_CC_GRAPPLER_SECTIONS_SECTION_EMITTER_H_
