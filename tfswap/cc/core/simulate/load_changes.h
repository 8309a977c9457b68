// The device's memory load over a simulated step, derived from a SimResult.

#ifndef TFSWAP_CC_CORE_SIMULATE_LOAD_CHANGES_H_
#define TFSWAP_CC_CORE_SIMULATE_LOAD_CHANGES_H_

#include <cstdint>
#include <utility>
#include <vector>

#include "core/simulate/simulator.h"
#include "core/simulate/timeline.h"

namespace tfswap {

// Return all changes of the load in order, starting from resident_bytes.
std::vector<LoadChange> LoadChanges(const Timeline& timeline, const SimResult& result);
// Return the five largest buffers at the peak with their bytes; resident bytes are left out.
std::vector<std::pair<int32_t, Bytes>> PeakHolders(const Timeline& timeline,
                                                   const SimResult& result);

}  // namespace tfswap

#endif  // TFSWAP_CC_CORE_SIMULATE_LOAD_CHANGES_H_
