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

// A plan as the pass reads it. Nodes are named as in the graph that TensorFlow's own passes leave;
// docs/architecture.md has the schema (the JSON that tfswap/plan/schema.py writes).

// One swap-in, and who reads what it brings.
struct ReturnSpec {
  std::string trigger;  // starts it by ending; "": the swap-out does
  std::vector<std::string> consumers;
  int64_t next_use = 0;  // place in the step of the access after this return
};

// One tensor's swap-out and its swap-ins.
struct SwapSpec {
  std::string tensor;  // "node:port"
  bool lazy = false;   // only when somebody needs the room
  int64_t next_use = 0;
  std::string tier = "host";       // of far memory: host, compressed or file
  std::string codec;               // by which it is kept in the compressed tier
  int64_t rate_percent = 100;      // size of what a lossy codec makes
  int64_t threads = 1;             // that encode and decode
  std::vector<std::string> gates;  // ops that wait for the swap-out
  std::vector<ReturnSpec> returns;
  // If `tensor` is a variable's handle, whose value leaves: who needs it before.
  std::vector<std::string> after;
  bool returns_in_step = false;  // whether it then comes back behind that
};

// A tensor that is made again for those that read it late.
struct RecomputeSpec {
  std::string tensor;              // "node:port"
  std::vector<std::string> nodes;  // that make it, in this order; the last one made it before
  std::string trigger;             // they begin when it has ended
  std::vector<std::string> consumers;
};

struct FunctionSpec {
  std::string fingerprint;
  std::vector<RecomputeSpec> recomputes;  // before all else: swaps and order may name clones
  std::vector<SwapSpec> swaps;
  std::vector<std::pair<std::string, std::string>> order;  // first before second
  bool reserve = false;  // tensors without a swap get a lazy one, as in the bootstrap
};

enum class Unmatched { kLeave, kBootstrap };

struct PlanSpec {
  std::vector<FunctionSpec> functions;
  Unmatched unmatched = Unmatched::kLeave;  // what happens to graphs without an entry
  int64_t min_bytes = 1 << 20;              // smaller tensors pass by reference
  bool describe = false;                    // keep descriptions of the graphs seen
  std::string label;                        // of the training, by which its ops are known
  int64_t sections = 1;                     // of the batch that ops work on, one after the other
  // Examples of the batch that is cut into so many; 0: whatever it has.
  int64_t batch = 0;
  // Whether the pass chooses that number for graphs that have no entry.
  bool chooses = false;
  // Whether values of variables leave, so that none is to be read before it is needed.
  bool stream_weights = false;
  // Graphs without an entry that have one in a file: fingerprint -> path (remembered_plan.h).
  std::map<std::string, std::string> remembered;
};

// Larger texts are refused.
constexpr int64_t kMostPlanBytes = int64_t{64} << 20;

// `label` gets the plan's even where the rest of it cannot be read.
absl::StatusOr<PlanSpec> ParsePlan(absl::string_view json, std::string* label = nullptr);

// Parses the text of a remembered plan's file, {"format": ..., "plan": {...}, ...}, and returns the
// plan's entry for the graph with this fingerprint.
absl::StatusOr<FunctionSpec> ParseRemembered(absl::string_view json,
                                             const std::string& fingerprint);

}  // namespace tfswap

#endif  // TFSWAP_CC_GRAPPLER_SWAP_SPEC_H_
