// Chains of allocators to Python (benchmarks and tests, by ctypes).

#include "allocator/chain.h"
#include "allocator/kernel_scope.h"
#include "allocator/replay.h"
#include "core/util/c_text.h"
#include "tsl/profiler/lib/scoped_memory_debug_annotation.h"

using ::tfswap::BudgetAllocator;
using ::tfswap::BudgetStats;
using ::tfswap::Chain;
using ::tfswap::Copied;
using ::tfswap::KernelScope;
using ::tfswap::Numbers;
using ::tfswap::ReplayEvent;
using ::tfswap::ReplayResult;
using ::tfswap::SlabAllocator;
using ::tfswap::SlabAllocatorStats;

extern "C" {

// Chains of allocators (allocator/chain.h), for tests and benchmarks. Null, and the reason in
// `*problem`, for one that cannot be.
void* tfswap_chain_make(const char* names, int64_t budget_bytes, char** problem) {
  auto chain = Chain::Make(names, budget_bytes);
  *problem = Copied(chain.ok() ? "" : std::string(chain.status().message()));
  return chain.ok() ? chain->release() : nullptr;
}

void tfswap_chain_destroy(void* chain) { delete static_cast<Chain*>(chain); }

// Answers "" or why not; a chain without a slab takes any layout.
char* tfswap_chain_install(void* chain, const char* graph, const char* text) {
  SlabAllocator* slab = static_cast<Chain*>(chain)->slab();
  if (slab == nullptr) return Copied("");
  const absl::Status status =
      *text == '\0' ? (slab->Remove(graph), absl::OkStatus()) : slab->Install(graph, text);
  return Copied(status.ok() ? "" : std::string(status.message()));
}

void tfswap_chain_check(void* chain, int check) {
  SlabAllocator* slab = static_cast<Chain*>(chain)->slab();
  if (slab != nullptr) slab->SetCheck(check != 0);
}

// As an output of the op that has been planned for the graph, the `ordinal`th of its run.
void* tfswap_chain_allocate(void* chain, const char* graph, const char* op, int ordinal,
                            int64_t alignment, int64_t bytes, int retry) {
  auto* own = static_cast<Chain*>(chain);
  KernelScope scope(KernelScope::Role::kKernel, nullptr);
  if (own->slab() != nullptr) scope.planned = own->slab()->FindByName(graph, op);
  scope.made[0] = static_cast<uint32_t>(ordinal);
  tsl::profiler::ScopedMemoryDebugAnnotation annotation(op, 0, "output", 0,
                                                        [] { return std::string(); });
  tensorflow::AllocationAttributes attributes;
  attributes.retry_on_failure = retry != 0;
  return own->outermost()->AllocateRaw(static_cast<size_t>(alignment), static_cast<size_t>(bytes),
                                       attributes);
}

void tfswap_chain_free(void* chain, void* block) {
  static_cast<Chain*>(chain)->outermost()->DeallocateRaw(block);
}

int64_t tfswap_chain_requested(void* chain, const void* block) {
  return static_cast<int64_t>(static_cast<Chain*>(chain)->outermost()->RequestedSize(block));
}

void tfswap_chain_set_budget(void* chain, int64_t bytes) {
  BudgetAllocator* budget = static_cast<Chain*>(chain)->budget();
  if (budget != nullptr) budget->SetBudget(bytes);
}

void tfswap_chain_set_workspace_limit(void* chain, int64_t bytes) {
  if (auto* workspaces = static_cast<Chain*>(chain)->workspaces()) workspaces->SetLimit(bytes);
}

char* tfswap_chain_stats(void* chain) {
  auto* own = static_cast<Chain*>(chain);
  const auto load = own->outermost()->GetStats().value_or(tensorflow::AllocatorStats());
  Numbers numbers;
  numbers.Add("allocations", load.num_allocs)
      .Add("bytes_in_use", load.bytes_in_use)
      .Add("peak_bytes", load.peak_bytes_in_use)
      .Add("pool_bytes", load.pool_bytes.value_or(0))
      .Add("peak_pool_bytes", load.peak_pool_bytes.value_or(0));
  if (own->budget() != nullptr) {
    const BudgetStats budget = own->budget()->Stats();
    numbers.Add("budget_in_use", budget.bytes_in_use).Add("budget_peak", budget.peak_bytes);
  }
  if (own->slab() != nullptr) {
    const SlabAllocatorStats slab = own->slab()->Stats();
    numbers.Add("slab_bytes", slab.slab.committed_bytes)
        .Add("slab_claimed_bytes", slab.slab.claimed_bytes)
        .Add("hits", slab.hits)
        .Add("lasting", slab.lasting)
        .Add("moved", slab.moved)
        .Add("missed", slab.missed)
        .Add("unplanned", slab.unplanned)
        .Add("other_size", slab.other_size)
        .Add("taken", slab.taken)
        .Add("no_room", slab.no_room)
        .Add("faults", slab.faults);
  }
  return Copied(numbers.Text());
}

// Replays a step (allocator/replay.h): `events` are rows of bytes, block, offset. Answers ns.
int64_t tfswap_chain_replay(void* chain, const int64_t* events, int64_t count, int64_t height,
                            int threads, int repeats, int64_t* failures) {
  std::vector<ReplayEvent> steps;
  for (int64_t i = 0; i < count; ++i) {
    steps.push_back({events[3 * i], events[3 * i + 1], events[3 * i + 2]});
  }
  const ReplayResult result =
      ::tfswap::Replay(static_cast<Chain*>(chain)->outermost(), steps, height, threads, repeats);
  *failures = result.failures;
  return result.ns;
}

}  // extern "C"
