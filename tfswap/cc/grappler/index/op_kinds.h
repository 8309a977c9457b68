// Lists of op types. They decide which ops may get a control edge and whose outputs may be swapped;
// changing a list may change the last digits of results.

#ifndef TFSWAP_CC_GRAPPLER_INDEX_OP_KINDS_H_
#define TFSWAP_CC_GRAPPLER_INDEX_OP_KINDS_H_

#include <string>
#include <unordered_set>

namespace tfswap {

using OpNames = std::unordered_set<std::string>;

// Convolutions, matrix products and recurrent layers: the ops that depth counts.
const OpNames& Milestones();
// Large ops besides the milestones that no later pass fuses.
const OpNames& OtherGateable();
// Ops whose output is much larger than their inputs, so nothing else should be swapped in before
// they run.
const OpNames& Unfolding();
// Ops that a later pass (oneDNN's layout pass, on CPUs) may fuse with a neighbour.
const OpNames& MayBeFused();
// Ops that are done before the step, so that nothing can come before them.
const OpNames& TakeNoTime();
// Ops whose output 0 always shares the buffer of input 0.
const OpNames& Aliases();
// Ops whose outputs are or may be buffers owned outside of the step, or outlive the step.
const OpNames& ExternallyOwned();
// Ops whose inputs must not be replaced: those of loops, branches, transfers and results.
const OpNames& NotRewirable();

}  // namespace tfswap

#endif  // TFSWAP_CC_GRAPPLER_INDEX_OP_KINDS_H_
