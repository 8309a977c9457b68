// The device's load over a simulated step: what follows from a SimResult, for those who ask.

#ifndef TFSWAP_CC_CORE_SIMULATE_LOAD_CHANGES_H_
#define TFSWAP_CC_CORE_SIMULATE_LOAD_CHANGES_H_

#include <cstdint>
#include <utility>
#include <vector>

#include "core/simulate/simulator.h"
#include "core/simulate/timeline.h"

namespace tfswap {

// All changes of the load in order, from resident_bytes on.
std::vector<LoadChange> LoadChanges(const Timeline& timeline, const SimResult& result);
// The five largest buffers at the peak and their bytes; resident bytes are left out.
std::vector<std::pair<int32_t, Bytes>> PeakHolders(const Timeline& timeline,
                                                   const SimResult& result);

}  // namespace tfswap

#endif  // TFSWAP_CC_CORE_SIMULATE_LOAD_CHANGES_H_
