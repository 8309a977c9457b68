#ifndef TFSWAP_CC_ALLOCATOR_CHAIN_H_
#define TFSWAP_CC_ALLOCATOR_CHAIN_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "allocator/slab_allocator.h"
#include "allocator/statistics_allocator.h"
#include "allocator/system_allocator.h"
#include "allocator/workspace_allocator.h"

namespace tfswap {

// Allocators put together by name, from the outermost to the one that has memory, such as
// "statistics recording slab budget system": for tests and benchmarks. The last one is "system" or
// "bfc" (TensorFlow's, with the budget as its memory).
class Chain {
 public:
  static absl::StatusOr<std::unique_ptr<Chain>> Make(const std::string& names,
                                                     int64_t budget_bytes);

  tensorflow::Allocator* outermost() const { return parts_.back().get(); }
  // Null where the chain has none.
  SlabAllocator* slab() const { return slab_; }
  BudgetAllocator* budget() const { return budget_; }
  StatisticsAllocator* statistics() const { return statistics_; }
  WorkspaceAllocator* workspaces() const { return workspaces_; }

 private:
  Chain() = default;

  // From the innermost on; destroyed from the outermost on.
  std::vector<std::unique_ptr<tensorflow::Allocator>> parts_;
  SlabAllocator* slab_ = nullptr;
  BudgetAllocator* budget_ = nullptr;
  StatisticsAllocator* statistics_ = nullptr;
  WorkspaceAllocator* workspaces_ = nullptr;
  char* bfc_begin_ = nullptr;

 public:
  ~Chain() {
    while (!parts_.empty()) parts_.pop_back();
  }
};

}  // namespace tfswap

#endif  // TFSWAP_CC_ALLOCATOR_CHAIN_H_
