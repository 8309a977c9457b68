#include "replay.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>

#include "allocator/kernel_scope.h"
#include "tsl/profiler/lib/scoped_memory_debug_annotation.h"

namespace tfswap {

ReplayResult Replay(tensorflow::Allocator* allocator, const std::vector<ReplayEvent>& events,
                    int64_t height, int threads, int repeats) {
  int64_t blocks = 0;
  for (const ReplayEvent& event : events) blocks = std::max(blocks, event.block + 1);
  std::atomic<int> ready{0};
  std::atomic<int64_t> failures{0};
  std::vector<int64_t> ns(threads);
  const auto run = [&](int thread) {
    std::vector<PlannedOp> planned(events.size());
    for (size_t i = 0; i < events.size(); ++i) {
      if (events[i].bytes < 0 || events[i].offset < 0) continue;
      planned[i].slots[0] = {{events[i].offset + thread * height, events[i].bytes}};
    }
    std::vector<void*> at(blocks, nullptr);
    KernelScope scope(KernelScope::Role::kKernel, nullptr);
    tsl::profiler::ScopedMemoryDebugAnnotation annotation("replay", 0, "output", 0,
                                                          [] { return std::string(); });
    ready.fetch_add(1);
    while (ready.load() < threads) {
    }
    const auto begun = std::chrono::steady_clock::now();
    for (int repeat = 0; repeat < repeats; ++repeat) {
      for (size_t i = 0; i < events.size(); ++i) {
        const ReplayEvent& event = events[i];
        void*& block = at[event.block];
        if (event.bytes >= 0) {
          scope.planned = PlannedOpRef(&planned[i]);
          scope.made[0] = 0;
          block = allocator->AllocateRaw(64, static_cast<size_t>(event.bytes));
          if (block == nullptr) failures.fetch_add(1);
        } else if (block != nullptr) {
          allocator->DeallocateRaw(block);
          block = nullptr;
        }
      }
      for (void*& block : at) {
        if (block != nullptr) allocator->DeallocateRaw(block);
        block = nullptr;
      }
    }
    ns[thread] = (std::chrono::steady_clock::now() - begun) / std::chrono::nanoseconds(1);
  };
  std::vector<std::thread> workers;
  for (int thread = 1; thread < threads; ++thread) workers.emplace_back(run, thread);
  run(0);
  for (std::thread& worker : workers) worker.join();
  return {*std::max_element(ns.begin(), ns.end()), failures.load()};
}

}  // namespace tfswap
