#ifndef TFSWAP_CC_GRAPPLER_INDEX_OP_ATTRIBUTES_H_
#define TFSWAP_CC_GRAPPLER_INDEX_OP_ATTRIBUTES_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "grappler/sections/split_rule.h"

namespace tfswap {

// An op's attributes; what is not there is false, 0 or empty.
bool Flag(const OpView& op, const char* name);
int64_t Integer(const OpView& op, const char* name);
std::vector<int64_t> Integers(const OpView& op, const char* name);
const std::string& Text(const OpView& op, const char* name);
// An input that is a constant axis of what has those dimensions, from the first one on.
std::optional<int64_t> ConstantAxis(const OpView& op, int input, const Dims& of);

}  // namespace tfswap

#endif  // TFSWAP_CC_GRAPPLER_INDEX_OP_ATTRIBUTES_H_
