#include "chain.h"

#include <algorithm>
#include <stdexcept>

#include "absl/strings/str_split.h"
#include "bfc.h"

namespace tfswap {

Chain::Chain(const std::string& names, int64_t budget_bytes) : names_(names) {
  std::vector<std::string> order = absl::StrSplit(names, ' ', absl::SkipEmpty());
  std::reverse(order.begin(), order.end());
  for (const std::string& name : order) {
    const bool has_memory = name == "system" || name == "bfc";
    if (has_memory != parts_.empty()) {
      throw std::invalid_argument("'" + names +
                                  "': the last one, and no other, must be 'system' or 'bfc'");
    }
    tensorflow::Allocator* next = parts_.empty() ? nullptr : outermost();
    std::unique_ptr<tensorflow::Allocator> part = Make(name, next, budget_bytes);
    if (part == nullptr) {
      throw std::invalid_argument("'" + names + "': '" + name +
                                  "' is unknown or repeated; allocators are statistics, workspace, "
                                  "recording, slab, budget, system, bfc");
    }
    parts_.push_back(std::move(part));
  }
  if (parts_.empty()) throw std::invalid_argument("an empty chain");
}

void Chain::Close() {
  while (!parts_.empty()) parts_.pop_back();
}

std::unique_ptr<tensorflow::Allocator> Chain::Make(const std::string& name,
                                                   tensorflow::Allocator* next,
                                                   int64_t budget_bytes) {
  if (name == "system") return std::make_unique<SystemAllocator>("chain");
  if (name == "bfc") return MakeBfc(budget_bytes, nullptr);
  if (name == "budget" && budget_ == nullptr) {
    auto budget = std::make_unique<BudgetAllocator>(next);
    budget->SetBudget(budget_bytes);
    budget_ = budget.get();
    return budget;
  }
  if (name == "slab" && slab_ == nullptr) {
    BudgetAllocator* budget = budget_;
    auto slab = std::make_unique<SlabAllocator>(next, budget, [budget] {
      if (budget != nullptr) budget->NotifyFreed();
    });
    // Only a slab above the budget can take back blocks that are not the budget's.
    if (budget != nullptr) budget->SetSpareMemory(slab.get());
    slab_ = slab.get();
    return slab;
  }
  if (name == "statistics" && statistics_ == nullptr) {
    auto statistics = std::make_unique<StatisticsAllocator>(next);
    statistics_ = statistics.get();
    return statistics;
  }
  if (name == "workspace" && workspaces_ == nullptr) {
    auto workspaces = std::make_unique<WorkspaceAllocator>(next);
    workspaces_ = workspaces.get();
    return workspaces;
  }
  if (name == "recording") {
    auto recording = std::make_unique<RecordingAllocator>(next);
    if (budget_ != nullptr) budget_->SetHolders(recording.get());
    return recording;
  }
  return nullptr;
}

}  // namespace tfswap
