#ifndef TFSWAP_CC_GRAPPLER_SECTIONS_SPLIT_RULE_H_
#define TFSWAP_CC_GRAPPLER_SECTIONS_SPLIT_RULE_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "tensorflow/core/framework/node_def.pb.h"

namespace tfswap {

// The dimensions of a tensor, -1 for an unknown one; no value: unknown rank.
using Dims = std::optional<std::vector<int64_t>>;

// A part of a tensor along an axis: [begin, end).
struct Piece {
  int64_t begin = 0;
  int64_t end = 0;
  bool operator==(const Piece& other) const { return begin == other.begin && end == other.end; }
};

// How a tensor is split into one part per section: part s is [bounds[s], bounds[s + 1]) of the
// axis.
struct Cut {
  int axis = 0;
  std::vector<int64_t> bounds;

  int64_t count() const { return static_cast<int64_t>(bounds.size()) - 1; }
  Piece part(int64_t section) const { return {bounds[section], bounds[section + 1]}; }
  bool operator==(const Cut& other) const { return axis == other.axis && bounds == other.bounds; }
};

// Return a cut into `count` parts that are as equal as integers allow.
inline Cut EvenCut(int axis, int64_t extent, int64_t count) {
  Cut cut{axis, {}};
  for (int64_t s = 0; s <= count; ++s) cut.bounds.push_back(extent * s / count);
  return cut;
}

// What the copy of an op for one section reads of an input.
enum class InputKind {
  kWhole,  // the whole tensor
  kPart,   // a piece of it
  kInts,   // a constant per section, such as the shape of a part
};

// An input of an op that runs on sections.
struct InputPart {
  InputKind kind = InputKind::kWhole;
  int axis = 0;                             // of kPart
  std::vector<Piece> pieces;                // of kPart, by section; they may overlap
  std::vector<std::vector<int64_t>> zeros;  // padding of a piece, as for Pad; empty: none
  std::vector<std::vector<int64_t>> ints;   // of kInts, by section
};

// How the output of the op is computed from the outputs of its copies.
enum class OutputKind {
  kPart,  // by concatenation
  kSum,   // as their sum
  kMean,  // as their mean, weighted by the size of the section
};

struct OutputPart {
  OutputKind kind = OutputKind::kPart;
  Cut cut;  // of kPart; of kMean, the weights
};

// The region that is kept of the output of a section's copy.
struct KeptRegion {
  std::vector<int64_t> begin;
  std::vector<int64_t> size;
  std::vector<int64_t> made;

  bool IsAll() const { return size == made; }
};

struct SplitRule {
  std::vector<InputPart> inputs;
  std::vector<OutputPart> outputs;
  // The explicit_paddings of an op with a window, by section; empty: those of the op.
  std::vector<std::vector<int64_t>> paddings;
  // For an op whose copies compute more than their part: the region to keep, by section.
  std::vector<KeptRegion> kept;
};

struct OpView {
  const tensorflow::NodeDef* node;
  std::vector<Dims> inputs;
  std::vector<Dims> outputs;
  // The cut of each input that depends on the batch.
  std::vector<std::optional<Cut>> cuts;
  std::function<std::optional<std::vector<int64_t>>(int input)> constant;
  // The number of sections.
  int64_t count;

  bool IsBatched(int input) const { return cuts[input].has_value(); }
};

}  // namespace tfswap

#endif  // TFSWAP_CC_GRAPPLER_SECTIONS_SPLIT_RULE_H_
