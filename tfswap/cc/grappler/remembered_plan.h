#ifndef TFSWAP_CC_GRAPPLER_REMEMBERED_PLAN_H_
#define TFSWAP_CC_GRAPPLER_REMEMBERED_PLAN_H_

#include <string>

#include "absl/status/statusor.h"
#include "grappler/swap_spec.h"

namespace tfswap {

// Read the plan of a graph that an earlier training left on disk (tfswap/plan/cache.py writes it).
// The file must be a regular file that only this user can write to, of at most kMaxPlanBytes. Links
// are not followed.
absl::StatusOr<FunctionSpec> ReadRemembered(const std::string& path,
                                            const std::string& fingerprint);

}  // namespace tfswap

#endif  // TFSWAP_CC_GRAPPLER_REMEMBERED_PLAN_H_
