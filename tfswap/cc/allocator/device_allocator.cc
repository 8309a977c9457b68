#include "allocator/device_allocator.h"

#include <memory>
#include <mutex>
#include <unordered_set>
#include <utility>

#include "allocator/kernel_scope.h"
#include "allocator/xla_launch.h"
#include "core/util/forked.h"

namespace tfswap {

namespace {

// The blocks that a forked process has allocated. Unused before the fork, so the mutex is not held.
struct BlocksOfFork {
  std::mutex mu;
  std::unordered_set<void*> blocks;
};

BlocksOfFork& OfFork() {
  static auto* of_fork = new BlocksOfFork();
  return *of_fork;
}

}  // namespace

DeviceAllocator::Parts::Parts(const std::string& name)
    : system(std::make_unique<SystemAllocator>(name)),
      budget(system.get()),
      slab(&budget, &budget, [this] { budget.NotifyFreed(); }),
      recording(&slab),
      dummy_pages(&recording) {
  Connect();
}

tensorflow::Allocator* DeviceAllocator::Parts::outermost() {
  if (workspaces != nullptr) return workspaces.get();
  return &dummy_pages;
}

DeviceAllocator::Parts::Parts(tensorflow::Allocator* memory, const Watch& make_watch)
    : budget(memory),
      slab(&budget, [this] { budget.NotifyFreed(); }),
      watch(make_watch(&slab)),
      recording(watch.get()),
      dummy_pages(&recording),
      workspaces(std::make_unique<WorkspaceAllocator>(&dummy_pages)) {
  Connect();
}

void DeviceAllocator::Parts::Connect() {
  budget.SetSpareMemory(&slab);
  budget.SetHolders(&recording);
}

DeviceAllocator::DeviceAllocator(const std::string& name)
    : DeviceAllocator(std::make_unique<Parts>(name)) {}

DeviceAllocator::DeviceAllocator(tensorflow::Allocator* memory, const Watch& watch)
    : DeviceAllocator(std::make_unique<Parts>(memory, watch)) {}

DeviceAllocator::DeviceAllocator(std::unique_ptr<Parts> parts)
    : StatisticsAllocator(parts->outermost()), owned_(std::move(parts)), parts_(*owned_) {}

void* DeviceAllocator::AllocateRaw(size_t alignment, size_t num_bytes,
                                   const tensorflow::AllocationAttributes& attributes) {
  if (!IsForked() || !OnHost()) {
    return StatisticsAllocator::AllocateRaw(alignment, num_bytes, attributes);
  }
  void* ptr = parts_.system->AllocateRaw(alignment, num_bytes);
  if (ptr == nullptr) return nullptr;
  std::lock_guard<std::mutex> lock(OfFork().mu);
  OfFork().blocks.insert(ptr);
  return ptr;
}

void DeviceAllocator::DeallocateRaw(void* ptr) {
  if (!IsForked() || !OnHost()) {
    const KernelScope* scope = KernelScope::current;
    if (scope != nullptr && scope->xla != nullptr && scope->xla->Defer(ptr)) return;
    return StatisticsAllocator::DeallocateRaw(ptr);
  }
  {
    std::lock_guard<std::mutex> lock(OfFork().mu);
    if (OfFork().blocks.erase(ptr) == 0) return;
  }
  parts_.system->DeallocateRaw(ptr);
}

int64_t DeviceAllocator::ReleaseEnd(void* ptr, int64_t kept_bytes) {
  if (!OnHost() || !parts_.recording.Lists(ptr)) return 0;
  // Reduce the load before waiting threads are notified, because they add to it.
  if (parts_.slab.Owns(ptr)) {
    return parts_.slab.ReleaseEnd(ptr, kept_bytes, [this](int64_t bytes) { Shrank(bytes); });
  }
  const int64_t bytes = parts_.system->ReleaseEnd(ptr, kept_bytes);
  Shrank(bytes);
  if (bytes > 0) parts_.budget.Release(bytes);
  return bytes;
}

bool DeviceAllocator::Pay(void* ptr, int64_t bytes) {
  const auto before = static_cast<int64_t>(RequestedSize(ptr));
  const bool in_slab = parts_.slab.Owns(ptr);
  const bool paid = parts_.budget.WhileLeaving([&] {
    if (in_slab) return parts_.slab.Pay(ptr, bytes);
    const int64_t unpaid = parts_.system->Unpaid(ptr, bytes);
    if (!parts_.budget.Pay(unpaid)) return false;
    parts_.system->Paid(ptr, unpaid);
    return true;
  });
  if (paid) Grew(static_cast<int64_t>(RequestedSize(ptr)) - before);
  return paid;
}

int64_t DeviceAllocator::memory_bytes() {
  const auto stats = parts_.budget.wrapped()->GetStats();
  return stats.has_value() ? stats->bytes_limit.value_or(0) : 0;
}

void DeviceAllocator::StartRecording(bool host_times) {
  parts_.recording.StartRecording(GetStats()->bytes_in_use, host_times);
}

void DeviceAllocator::RestartWindow() {
  parts_.budget.RestartWindow();
  StatisticsAllocator::RestartWindow();
}

}  // namespace tfswap
