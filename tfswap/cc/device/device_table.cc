#include "device/device_table.h"

#include <atomic>
#include <map>
#include <mutex>

namespace tfswap {

namespace {

struct Table {
  std::mutex mu;
  std::map<int, DeviceAllocator*> allocators;
  int made = 0;
  int cpus = 0;
  int gpus = 0;
  std::atomic<bool> has_gpu{false};
  std::atomic<PinnedMemory> pinned{nullptr};
};

Table& GlobalTable() {
  static auto* table = new Table();
  return *table;
}

}  // namespace

DeviceAllocator* AllocatorOf(int device) {
  Table& table = GlobalTable();
  std::lock_guard<std::mutex> lock(table.mu);
  const auto known = table.allocators.find(device);
  if (known != table.allocators.end()) return known->second;
  if (device >= kFirstGpu) return nullptr;
  return table.allocators[device] = new DeviceAllocator("tfswap_cpu");
}

void RegisterDevice(int device, DeviceAllocator* allocator) {
  Table& table = GlobalTable();
  std::lock_guard<std::mutex> lock(table.mu);
  ++table.made;
  int& count = device >= kFirstGpu ? table.gpus : table.cpus;
  count = std::max(count, device % kFirstGpu + 1);
  if (device >= kFirstGpu) table.has_gpu.store(true);
  if (allocator != nullptr) table.allocators[device] = allocator;
}

void SetPinnedMemory(PinnedMemory memory) { GlobalTable().pinned.store(memory); }

tensorflow::Allocator* PinnedMemoryIfAny() {
  const Table& table = GlobalTable();
  const PinnedMemory memory = table.pinned.load();
  return memory == nullptr || !table.has_gpu.load() ? nullptr : memory();
}

int DevicesMade() {
  Table& table = GlobalTable();
  std::lock_guard<std::mutex> lock(table.mu);
  return table.made;
}

int CpuCount() {
  Table& table = GlobalTable();
  std::lock_guard<std::mutex> lock(table.mu);
  return table.cpus;
}

int GpuCount() {
  Table& table = GlobalTable();
  std::lock_guard<std::mutex> lock(table.mu);
  return table.gpus;
}

}  // namespace tfswap
