#ifndef TFSWAP_CC_GRAPPLER_SWAP_SPEC_H_
#define TFSWAP_CC_GRAPPLER_SWAP_SPEC_H_

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tfswap {

// A plan as the pass reads it, from the JSON that tfswap/plan/schema.py writes. Nodes have the
// names of the graph after TensorFlow's own passes.

// One swap-in and the ops that read the restored tensor.
struct ReturnSpec {
  std::string trigger;  // the swap-in starts when this op has ended; "": after the swap-out
  std::vector<std::string> consumers;
  int64_t next_use = 0;  // position in the step of the next access after this one
};

// The swap-out of one tensor and its swap-ins.
struct SwapSpec {
  std::string tensor;  // "node:port"
  bool lazy = false;   // on demand: only when an allocation needs the memory
  int64_t next_use = 0;
  std::string tier = "host";       // host, compressed or file
  std::string codec;               // of the compressed tier
  int64_t rate_percent = 100;      // encoded size of a lossy codec
  int64_t threads = 1;             // for encoding and decoding
  std::vector<std::string> gates;  // ops that wait for the swap-out
  std::vector<ReturnSpec> returns;
  // If `tensor` is the handle of a variable whose value is swapped: the ops that need the value
  // before the swap-out.
  std::vector<std::string> after;
  bool returns_in_step = false;  // whether the value is swapped in again in the same step
};

// A tensor that is recomputed for its late readers.
struct RecomputeSpec {
  std::string tensor;              // "node:port"
  std::vector<std::string> nodes;  // ops to run again, in this order; the last one is the producer
  std::string trigger;             // the recomputation starts when this op has ended
  std::vector<std::string> consumers;
};

struct FunctionSpec {
  std::string fingerprint;
  std::vector<RecomputeSpec> recomputes;  // applied first: swaps and order may name clones
  std::vector<SwapSpec> swaps;
  std::vector<std::pair<std::string, std::string>> order;  // first before second
  bool reserve = false;  // tensors without a swap get an on-demand one, as in the bootstrap
};

enum class Unmatched { kLeave, kBootstrap };

struct PlanSpec {
  std::vector<FunctionSpec> functions;
  Unmatched unmatched = Unmatched::kLeave;  // what happens to graphs without an entry
  int64_t min_bytes = 1 << 20;              // smaller tensors stay on the device
  bool describe = false;                    // keep descriptions of the graphs seen
  std::string label;                        // of the training
  int64_t sections = 1;                     // into which the batch is split
  // Examples of the batch that `sections` was planned for; 0: any number.
  int64_t batch = 0;
  // Whether the pass chooses the number of sections for graphs without an entry.
  bool chooses = false;
  // Whether values of variables are swapped, so that reads of variables must be delayed.
  bool stream_weights = false;
  // Whether graphs without an entry stay as they are if all that they allocate fits the budget.
  bool leaves_fitting = false;
  // The most examples of a training batch whose size is not known before the step; 0: unknown.
  int64_t examples = 0;
  // Graphs without an entry that have one in a file: fingerprint -> path (remembered_plan.h).
  std::map<std::string, std::string> remembered;
};

// The largest text of a plan that is parsed.
constexpr int64_t kMaxPlanBytes = int64_t{64} << 20;

// Parse a plan, which is untrusted input. `label` is set even if the rest of the plan is invalid.
absl::StatusOr<PlanSpec> ParsePlan(absl::string_view json, std::string* label = nullptr);

// Parse the text of a remembered plan's file, {"format": ..., "plan": {...}, ...}, and return the
// plan's entry for the graph with this fingerprint.
absl::StatusOr<FunctionSpec> ParseRemembered(absl::string_view json,
                                             const std::string& fingerprint);

}  // namespace tfswap

#endif  // TFSWAP_CC_GRAPPLER_SWAP_SPEC_H_
