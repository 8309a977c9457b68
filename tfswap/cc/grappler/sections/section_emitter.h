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

// Emits the graph of a section plan: a copy of each op for each section, the ops that split and
// join tensors, and barriers that run the sections of a stage one after the other.
class SectionEmitter {
 public:
  SectionEmitter(const InferredGraph& graph, const SectionPlan& plan)
      : graph_(graph), index_(graph.index()), plan_(plan) {}

  tensorflow::GraphDef Emit();

 private:
  // A stage and a step within it; all copies in one slot may run at the same time.
  struct TimeSlot {
    int stage;
    int64_t slot;
    bool operator<(const TimeSlot& other) const {
      return std::make_pair(stage, slot) < std::make_pair(other.stage, other.slot);
    }
  };

  void EmitCopies(int n);
  void EmitReader(int n);
  void AddBarriers();

  TimeSlot TimeSlotOf(int n, int64_t section) const {
    return {plan_.stage[n], section + plan_.delay[n]};
  }
  std::string CopyName(int n, int64_t section) const;
  // The name prefix of the nodes that are added for a tensor.
  std::string BaseName(TensorId tensor) const;
  tensorflow::NodeDef* Add(const std::string& name, const std::string& op, int like);
  // Add a node that runs in a time slot.
  tensorflow::NodeDef* AddAt(TimeSlot turn, const std::string& name, const std::string& op,
                             int like);
  std::string AddInts(const std::string& name, const std::vector<int64_t>& values,
                      tensorflow::DataType type, const std::vector<int64_t>& shape, int like);
  std::string AddFactor(const std::string& name, float factor, int like);
  // The functions below return the name of an input for an op.
  std::string Input(int n, size_t i, int64_t section);
  std::string PieceOf(TensorId tensor, int axis, Piece piece, TimeSlot turn);
  std::string Whole(TensorId tensor);
  std::string JoinParts(TensorId tensor, const Cut& cut);
  std::string SumParts(TensorId tensor, const OutputPart& part);
  // Add an op on the input `of`; `like` is the tensor with its type and device.
  std::string AddSlice(const std::string& of, TensorId like, int axis, Piece piece,
                       const std::string& name, TimeSlot turn);
  std::string AddBoxSlice(const std::string& of, TensorId like, const std::vector<int64_t>& begin,
                          const std::vector<int64_t>& size, const std::string& name, TimeSlot turn);
  std::string AddPad(const std::string& of, TensorId like, const std::vector<int64_t>& zeros,
                     const std::string& name, TimeSlot turn);
  std::string AddConcat(const std::vector<std::string>& parts, TensorId like, int axis,
                        const std::string& name, std::optional<TimeSlot> turn);
  const std::vector<int64_t>& DimsOf(TensorId tensor) const { return *graph_.DimsOf(tensor); }

  const InferredGraph& graph_;
  const GraphIndex& index_;
  const SectionPlan& plan_;
  tensorflow::GraphDef result_;
  std::set<std::string> added_;  // names of nodes of the result
  std::map<std::pair<int, int>, std::string> wholes_;
  std::map<TimeSlot, std::vector<int>> slot_nodes_;  // nodes of the result
};

}  // namespace tfswap

#endif  // TFSWAP_CC_GRAPPLER_SECTIONS_SECTION_EMITTER_H_
