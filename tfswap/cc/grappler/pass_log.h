#ifndef TFSWAP_CC_GRAPPLER_PASS_LOG_H_
#define TFSWAP_CC_GRAPPLER_PASS_LOG_H_

#include <cstdint>
#include <string>
#include <vector>

#include "grappler/sections/section_choice.h"

namespace tfswap {

// What the pass did to one graph.
struct PassRecord {
  std::string function;  // TensorFlow's name for it
  std::string fingerprint;
  std::string portable;  // the fingerprint that survives a SavedModel
  std::string label;     // of the training that the plan belongs to
  std::string outcome;   // "planned", "bootstrapped", "left" or "refused"
  std::string reason;    // why it was refused
  bool trains = false;   // the graph has gradients; known if the plan asked for a description
  // The most that a step can allocate, whatever the order of its ops; 0: unknown, or not needed.
  int64_t most_bytes = 0;
  int nodes = 0;
  int swaps = 0;
  int sectioned_ops = 0;  // ops of TensorFlow's graph that run on sections of the batch
  int64_t sections = 1;   // into which the batch is cut
  int64_t examples = 0;   // of that batch; 0: unknown
  // The bytes that the largest op needs, for each number of sections that was considered.
  std::vector<SectionFloor> floors;
  int64_t serial = 0;  // counts records in this process
  int times = 1;       // how often the graph was optimized for this training
  // The graph, if the plan asked for it: as it is fingerprinted, and with the recomputed ops of the
  // plan ("" if it has none).
  std::string description;
  std::string planned_description;
};

void LogPass(PassRecord record);
// Return the newest record of each graph of each training, oldest first.
std::vector<PassRecord> PassRecords();
// Return the description of a graph from the records of any training; "" if there is none.
std::string DescriptionOf(const std::string& fingerprint);
// Return the description of the graph under the plan of the training with this label.
std::string DescriptionUnderPlan(const std::string& fingerprint, const std::string& label);
// Return whether the floors of the graph are known.
bool HasFloors(const std::string& fingerprint);
void ClearPassRecords();

}  // namespace tfswap

#endif  // TFSWAP_CC_GRAPPLER_PASS_LOG_H_
