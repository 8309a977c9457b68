#ifndef TFSWAP_CC_GRAPPLER_SECTIONS_SECTION_CHOICE_H_
#define TFSWAP_CC_GRAPPLER_SECTIONS_SECTION_CHOICE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "grappler/sections/op_floor.h"
#include "tensorflow/core/grappler/grappler_item.h"

namespace tfswap {

// What the largest op needs where the batch is cut into so many sections.
struct SectionFloor {
  int64_t sections = 1;
  OpFloor floor;
};

// A graph in sections of the batch, and why in so many.
struct SectionChoice {
  int64_t sections = 1;
  int64_t examples = 0;              // of its batch; 0: nobody knows
  int ops = 0;                       // that work on sections
  tensorflow::GraphDef graph;        // empty if no op does
  std::vector<SectionFloor> floors;  // of the numbers that were looked at
};

// The number by which the largest op fits into `room_bytes`: one section if it does with some room
// for what is beside it, else the smallest of about 2, 4, 8, ... (the divisor of the batch behind
// one, if there is one) with which it leaves as much again, else the one that needs least.
absl::StatusOr<SectionChoice> ChooseSections(const tensorflow::grappler::GrapplerItem& item,
                                             int64_t room_bytes);

// The wanted number for a batch of `batch` examples (0: of any size). A batch of another size, the
// last one say, is cut into as few sections as have no more examples than those.
absl::StatusOr<SectionChoice> InWantedSections(const tensorflow::grappler::GrapplerItem& item,
                                               int64_t wanted, int64_t batch);

// The floors of all numbers that are worth a look: until the largest op needs no less.
absl::StatusOr<std::vector<SectionFloor>> FloorsOf(const tensorflow::grappler::GrapplerItem& item);

}  // namespace tfswap

#endif  // TFSWAP_CC_GRAPPLER_SECTIONS_SECTION_CHOICE_H_
