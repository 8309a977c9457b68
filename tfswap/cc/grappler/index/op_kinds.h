// What the pass knows of ops by their types alone. What may take a control edge, and whose outputs
// may be swapped, hangs on these lists: a change of them may change last digits.

#ifndef TFSWAP_CC_GRAPPLER_INDEX_OP_KINDS_H_
#define TFSWAP_CC_GRAPPLER_INDEX_OP_KINDS_H_

#include <string>
#include <unordered_set>

namespace tfswap {

using OpNames = std::unordered_set<std::string>;

// Convolutions, matrix products and whole recurrent layers: by them depth is counted.
const OpNames& Milestones();
// Besides the milestones: large ops that no later pass fuses.
const OpNames& OtherGateable();
// Ops that make far more than they read, beside what they read: no room for anything else then.
const OpNames& Unfolding();
// Ops that a later pass may fuse with a neighbour (oneDNN's layout pass), or that do nothing at a
// time of their own.
const OpNames& MayBeFused();
// Output 0 has the buffer of input 0, always.
const OpNames& Aliases();
// Their outputs are, or may be, somebody else's buffers, or live on beyond the step.
const OpNames& HeldElsewhere();
// Their inputs stay what they are: those of loops, branches, transfers and results.
const OpNames& NotRewirable();

}  // namespace tfswap

#endif  // TFSWAP_CC_GRAPPLER_INDEX_OP_KINDS_H_
