#ifndef TFSWAP_CC_GRAPPLER_INDEX_OP_ATTRIBUTES_H_
#define TFSWAP_CC_GRAPPLER_INDEX_OP_ATTRIBUTES_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "grappler/sections/split_rule.h"

namespace tfswap {

// Return an attribute of the op; false, 0 or empty if it is missing.
bool Flag(const OpView& op, const char* name);
int64_t Integer(const OpView& op, const char* name);
std::vector<int64_t> Integers(const OpView& op, const char* name);
const std::string& Text(const OpView& op, const char* name);
// Return a constant axis input for a tensor of dimensions `of`, as a non-negative number.
std::optional<int64_t> ConstantAxis(const OpView& op, int input, const Dims& of);

}  // namespace tfswap

#endif  // TFSWAP_CC_GRAPPLER_INDEX_OP_ATTRIBUTES_H_
