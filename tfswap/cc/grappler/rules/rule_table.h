#ifndef TFSWAP_CC_GRAPPLER_RULES_RULE_TABLE_H_
#define TFSWAP_CC_GRAPPLER_RULES_RULE_TABLE_H_

#include <string>
#include <unordered_map>
#include <vector>

namespace tfswap {

// Rules for running ops on sections, by op type.
template <typename Rule>
class RuleTable {
 public:
  void Set(const Rule& rule, const std::vector<std::string>& ops) {
    for (const std::string& op : ops) rules_[op] = rule;
  }
  // Null if there is no rule for the op.
  const Rule* Find(const std::string& op) const {
    const auto found = rules_.find(op);
    return found == rules_.end() ? nullptr : &found->second;
  }

 private:
  std::unordered_map<std::string, Rule> rules_;
};

}  // namespace tfswap

#endif  // TFSWAP_CC_GRAPPLER_RULES_RULE_TABLE_H_
