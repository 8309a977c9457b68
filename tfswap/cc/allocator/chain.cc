#include "allocator/chain.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "allocator/bfc_arenas.h"

namespace tfswap {

absl::StatusOr<std::unique_ptr<Chain>> Chain::Make(const std::string& names, int64_t budget_bytes) {
  std::vector<std::string> order = absl::StrSplit(names, ' ', absl::SkipEmpty());
  std::reverse(order.begin(), order.end());
  std::unique_ptr<Chain> chain(new Chain());
  for (size_t i = 0; i < order.size(); ++i) {
    const std::string& name = order[i];
    const bool has_memory = name == "system" || name == "bfc";
    if (has_memory != (i == 0)) {
      return absl::InvalidArgumentError(
          absl::StrCat("'", names, "': the last one, and no other, is 'system' or 'bfc'"));
    }
    tensorflow::Allocator* next = i == 0 ? nullptr : chain->parts_.back().get();
    std::unique_ptr<tensorflow::Allocator> part;
    if (name == "system") {
      part = std::make_unique<SystemAllocator>("chain");
    } else if (name == "bfc") {
      part = MakeBfc(budget_bytes, &chain->bfc_begin_);
    } else if (name == "budget" && chain->budget_ == nullptr) {
      auto budget = std::make_unique<BudgetAllocator>(next);
      budget->SetBudget(budget_bytes);
      chain->budget_ = budget.get();
      part = std::move(budget);
    } else if (name == "slab" && chain->slab_ == nullptr) {
      BudgetAllocator* budget = chain->budget_;
      auto slab = std::make_unique<SlabAllocator>(next, budget, [budget] {
        if (budget != nullptr) budget->NotifyFreed();
      });
      // Only what is above a budget can take blocks back that are not the budget's.
      if (budget != nullptr) budget->SetSpareMemory(slab.get());
      chain->slab_ = slab.get();
      part = std::move(slab);
    } else if (name == "statistics" && chain->statistics_ == nullptr) {
      auto statistics = std::make_unique<StatisticsAllocator>(next);
      chain->statistics_ = statistics.get();
      part = std::move(statistics);
    } else if (name == "workspace" && chain->workspaces_ == nullptr) {
      auto workspaces = std::make_unique<WorkspaceAllocator>(next);
      chain->workspaces_ = workspaces.get();
      part = std::move(workspaces);
    } else if (name == "recording") {
      auto recording = std::make_unique<RecordingAllocator>(next);
      if (chain->budget_ != nullptr) chain->budget_->SetHolders(recording.get());
      part = std::move(recording);
    } else {
      return absl::InvalidArgumentError(absl::StrCat(
          "'", names, "': '", name, "' is none of statistics, workspace, recording, slab, budget, ",
          "system, bfc, or there twice"));
    }
    chain->parts_.push_back(std::move(part));
  }
  if (chain->parts_.empty()) return absl::InvalidArgumentError("an empty chain");
  return chain;
}

}  // namespace tfswap
