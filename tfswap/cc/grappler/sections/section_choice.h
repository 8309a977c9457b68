#ifndef TFSWAP_CC_GRAPPLER_SECTIONS_SECTION_CHOICE_H_
#define TFSWAP_CC_GRAPPLER_SECTIONS_SECTION_CHOICE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "grappler/sections/op_floor.h"
#include "tensorflow/core/grappler/grappler_item.h"

namespace tfswap {

// The bytes that the largest op needs if the batch is split into so many sections.
struct SectionFloor {
  int64_t sections = 1;
  OpFloor floor;
};

// A graph that runs on sections of the batch, and the data behind the choice.
struct SectionChoice {
  int64_t sections = 1;
  int64_t examples = 0;              // of its batch; 0: unknown
  int ops = 0;                       // ops that run on sections
  tensorflow::GraphDef graph;        // empty if `ops` is 0
  std::vector<SectionFloor> floors;  // of the numbers that were considered
};

// Choose the number of sections with which the largest op fits into `available_bytes`: one section
// if the op leaves enough memory for others, else the smallest of about 2, 4, 8, ... (the next
// divisor of the batch if there is one) with which it leaves somewhat more, else the number with
// the smallest floor.
absl::StatusOr<SectionChoice> ChooseSections(const tensorflow::grappler::GrapplerItem& item,
                                             int64_t available_bytes);

// Use the requested number for a batch of `batch` examples (0: any size). A batch of a different
// size, such as the last one, is split into as few sections as possible that are no larger.
absl::StatusOr<SectionChoice> ApplySections(const tensorflow::grappler::GrapplerItem& item,
                                            int64_t requested, int64_t batch);

// Return the floors of increasing numbers of sections, until the floor no longer falls.
absl::StatusOr<std::vector<SectionFloor>> FloorsOf(const tensorflow::grappler::GrapplerItem& item);

}  // namespace tfswap

#endif  // TFSWAP_CC_GRAPPLER_SECTIONS_SECTION_CHOICE_H_
