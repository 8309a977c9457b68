#ifndef TESTS_SUPPORT_ALLOCATORS_CHAIN_H_
#define TESTS_SUPPORT_ALLOCATORS_CHAIN_H_

#include <memory>
#include <string>
#include <vector>

#include "allocator/slab_allocator.h"
#include "allocator/statistics_allocator.h"
#include "allocator/system_allocator.h"
#include "allocator/workspace_allocator.h"

namespace tfswap {

// The device's allocators, composed by name from the outermost to the one that provides memory,
// such as "statistics recording slab budget system". The last one is "system" or "bfc"
// (TensorFlow's BFC allocator over `budget_bytes` bytes).
class Chain {
 public:
  // Throws std::invalid_argument if the names do not make a chain.
  Chain(const std::string& names, int64_t budget_bytes);
  ~Chain() { Close(); }
  // Destroys the allocators; blocks that are still allocated are lost.
  void Close();

  const std::string& names() const { return names_; }
  tensorflow::Allocator* outermost() const { return parts_.back().get(); }
  // Null if the chain does not contain it.
  SlabAllocator* slab() const { return slab_; }
  BudgetAllocator* budget() const { return budget_; }
  WorkspaceAllocator* workspaces() const { return workspaces_; }

 private:
  std::unique_ptr<tensorflow::Allocator> Make(const std::string& name, tensorflow::Allocator* next,
                                              int64_t budget_bytes);

  const std::string names_;
  std::vector<std::unique_ptr<tensorflow::Allocator>> parts_;  // from the innermost on
  SlabAllocator* slab_ = nullptr;
  BudgetAllocator* budget_ = nullptr;
  StatisticsAllocator* statistics_ = nullptr;
  WorkspaceAllocator* workspaces_ = nullptr;
};

}  // namespace tfswap

#endif  // TESTS_SUPPORT_ALLOCATORS_CHAIN_H_
