#ifndef TFSWAP_CC_GRAPPLER_SECTIONS_SPLIT_RULE_H_
#define TFSWAP_CC_GRAPPLER_SECTIONS_SPLIT_RULE_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "tensorflow/core/framework/node_def.pb.h"

namespace tfswap {

// Dimensions, -1 for one that is not known; no value: not even how many there are.
using Dims = std::optional<std::vector<int64_t>>;

// A part of a tensor along an axis: [begin, end).
struct Piece {
  int64_t begin = 0;
  int64_t end = 0;
  bool operator==(const Piece& other) const { return begin == other.begin && end == other.end; }
};

// Where a tensor is cut into one part a section: part s is [bounds[s], bounds[s + 1]) of the axis.
struct Cut {
  int axis = 0;
  std::vector<int64_t> bounds;

  int64_t count() const { return static_cast<int64_t>(bounds.size()) - 1; }
  Piece part(int64_t section) const { return {bounds[section], bounds[section + 1]}; }
  bool operator==(const Cut& other) const { return axis == other.axis && bounds == other.bounds; }
};

// So many parts of an extent, as equal as whole numbers allow.
inline Cut EvenCut(int axis, int64_t extent, int64_t count) {
  Cut cut{axis, {}};
  for (int64_t s = 0; s <= count; ++s) cut.bounds.push_back(extent * s / count);
  return cut;
}

// What an op's copy for one section gets for an input.
enum class Share {
  kWhole,  // all of it
  kPart,   // a piece of it
  kInts,   // a constant of its own: a shape, say, of a part
};

// An input of an op that works on sections.
struct InputPart {
  Share share = Share::kWhole;
  int axis = 0;                             // of kPart
  std::vector<Piece> pieces;                // of kPart, by section; they may overlap
  std::vector<std::vector<int64_t>> zeros;  // around a piece, as Pad has them; empty: none
  std::vector<std::vector<int64_t>> ints;   // of kInts, by section
};

// What the copies' outputs are of the output of the op itself.
enum class Yield {
  kPart,  // its parts
  kSum,   // summands of it
  kMean,  // what it is the mean of, each by the size of its section
};

struct OutputPart {
  Yield yield = Yield::kPart;
  Cut cut;  // of kPart; of kMean, what its weights go by
};

// Of what a section's copy makes, the part that counts.
struct Kept {
  std::vector<int64_t> begin;
  std::vector<int64_t> size;
  std::vector<int64_t> made;

  bool IsAll() const { return size == made; }
};

// How an op can be computed section by section.
struct SplitRule {
  std::vector<InputPart> inputs;
  std::vector<OutputPart> outputs;
  // Of an op with a window: its explicit_paddings, by section; empty: padded as before.
  std::vector<std::vector<int64_t>> paddings;
  // Of an op that makes more than its part: what of it that is, by section.
  std::vector<Kept> kept;
};

// An op as the rules see it.
struct OpView {
  const tensorflow::NodeDef* node;
  std::vector<Dims> inputs;
  std::vector<Dims> outputs;
  // Where an input is cut, or is to be cut, if it is made from the batch.
  std::vector<std::optional<Cut>> cuts;
  // The integers of an input that is a constant.
  std::function<std::optional<std::vector<int64_t>>(int input)> constant;
  // How many sections.
  int64_t count;

  bool IsBatched(int input) const { return cuts[input].has_value(); }
};

}  // namespace tfswap

#endif  // TFSWAP_CC_GRAPPLER_SECTIONS_SPLIT_RULE_H_
