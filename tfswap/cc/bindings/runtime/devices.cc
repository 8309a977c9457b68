// Bindings for devices, their budgets and their statistics.

#include <optional>

#include "bindings/runtime/library.h"
#include "core/util/faults.h"
#include "device/device_table.h"
#include "far/far_file.h"

namespace py = pybind11;

namespace tfswap {
namespace {

// Return whether the device exists and has run an op.
bool HasDevice(int device) {
  DeviceAllocator* allocator = AllocatorOf(device);
  return allocator != nullptr && CopyEngine::For(allocator) != nullptr;
}

void SetBudget(int device, std::optional<int64_t> bytes) {
  DeviceOf(device)->budget()->SetBudget(bytes.value_or(0));
}

// No effect on a CPU.
void SetWorkspaceLimit(int device, std::optional<int64_t> bytes) {
  if (auto* workspaces = DeviceOf(device)->workspaces()) workspaces->SetLimit(bytes.value_or(-1));
}

void AddFarStats(CopyEngine* engine, Counts* counts) {
  const FarStats stats = engine->FarUse();
  auto& found = counts->counts;
  for (int i = 0; i < kFarTiers; ++i) {
    const FarTierStats& tier = stats.tiers[i];
    const std::string name = std::string("far_") + FarTierName(static_cast<FarTier>(i));
    found.insert(found.end(), {{name + "_bytes_out", tier.bytes_out},
                               {name + "_kept_bytes_out", tier.far_bytes_out},
                               {name + "_copies_out", tier.copies_out},
                               {name + "_bytes_in", tier.bytes_in},
                               {name + "_busy_out_ns", tier.busy_out_ns},
                               {name + "_busy_in_ns", tier.busy_in_ns},
                               {name + "_bytes_in_use", tier.bytes_in_use},
                               {name + "_peak_bytes", tier.peak_bytes}});
  }
  const SpillStats file = FarFile::Get()->Stats();
  found.insert(found.end(), {{"file_bytes", file.file_bytes},
                             {"file_limit_bytes", file.limit_bytes},
                             {"far_moved_on", stats.moved_on},
                             {"file_errors", stats.io_errors}});
}

Counts MemoryStats(int device) {
  DeviceAllocator* allocator = DeviceOf(device);
  CopyEngine* engine = EngineOf(device);
  const BudgetStats budget = allocator->budget()->Stats();
  const tensorflow::AllocatorStats load = *allocator->GetStats();
  const SlabAllocatorStats slab = allocator->slab()->Stats();
  const CopyStats copies = engine->Stats();
  Counts found;
  AddFarStats(engine, &found);
  // Read this last: encoded buffers have their final sizes by now, and no memory is reserved for
  // them.
  const HostPoolStats host = engine->host_memory()->Stats();
  found.counts.insert(found.counts.end(),
                      {{"budget_bytes", budget.budget_bytes},
                       {"memory_bytes", allocator->memory_bytes()},
                       {"bytes_in_use", budget.bytes_in_use},
                       {"peak_bytes", budget.peak_bytes},
                       {"window_peak_bytes", budget.window_peak_bytes},
                       {"load_bytes", load.bytes_in_use},
                       {"peak_load_bytes", load.peak_bytes_in_use},
                       {"window_peak_load_bytes", allocator->window_peak_bytes()},
                       {"largest_request_bytes", load.largest_alloc_size},
                       {"allocations", load.num_allocs},
                       {"waits", budget.waits},
                       {"wait_ns", budget.wait_ns},
                       {"failures", budget.failures},
                       {"workspaces_declined", budget.workspaces_declined},
                       {"slab_limit_bytes", slab.slab.limit_bytes},
                       {"slab_bytes", slab.slab.committed_bytes},
                       {"slab_claimed_bytes", slab.slab.claimed_bytes},
                       {"slab_hits", slab.hits},
                       {"slab_hit_bytes", slab.hit_bytes},
                       {"slab_moved", slab.moved},
                       {"slab_moved_bytes", slab.moved_bytes},
                       {"slab_unplanned", slab.unplanned},
                       {"slab_other_size", slab.other_size},
                       {"slab_taken", slab.taken},
                       {"slab_no_room", slab.no_room},
                       {"slab_missed", slab.missed},
                       {"slab_missed_bytes", slab.missed_bytes},
                       {"slab_lasting", slab.lasting},
                       {"slab_lasting_bytes", slab.lasting_bytes},
                       {"slab_faults", slab.faults},
                       {"bytes_out", copies.bytes_out},
                       {"bytes_in", copies.bytes_in},
                       {"copies_out", copies.copies_out},
                       {"copies_in", copies.copies_in},
                       {"copies_declined", copies.copies_declined},
                       {"far_buffers", copies.buffers_alive},
                       {"busy_out_ns", copies.busy_out_ns},
                       {"busy_in_ns", copies.busy_in_ns},
                       {"host_bytes_in_use", host.bytes_in_use},
                       {"host_peak_bytes", host.peak_bytes_in_use},
                       {"host_bytes_cached", host.bytes_cached},
                       {"host_limit_bytes", host.limit_bytes}});
  return found;
}

Counts StepCounts(int device) {
  DeviceAllocator* allocator = DeviceOf(device);
  CopyEngine* engine = EngineOf(device);
  const BudgetStats budget = allocator->budget()->Stats();
  const SlabAllocatorStats slab = allocator->slab()->Counts();
  const CopyStats copies = engine->Stats();
  return {{{"budget_bytes", budget.budget_bytes},
           {"bytes_in_use", budget.bytes_in_use},
           {"window_peak_bytes", budget.window_peak_bytes},
           {"load_bytes", allocator->GetStats()->bytes_in_use},
           {"window_peak_load_bytes", allocator->window_peak_bytes()},
           {"window_lack_bytes", budget.window_lack_bytes},
           {"waits", budget.waits},
           {"bytes_out", copies.bytes_out},
           {"bytes_in", copies.bytes_in},
           {"host_peak_bytes", engine->host_memory()->Stats().peak_bytes_in_use},
           {"slab_limit_bytes", slab.slab.limit_bytes},
           {"slab_hit_bytes", slab.hit_bytes},
           {"slab_moved_bytes", slab.moved_bytes},
           {"slab_missed_bytes", slab.missed_bytes},
           {"slab_lasting_bytes", slab.lasting_bytes}}};
}

void ResetMemoryStats(int device) {
  DeviceOf(device)->ClearStats();
  DeviceOf(device)->slab()->ResetCounts();
  EngineOf(device)->ClearStats();
  EngineOf(device)->ResetFarUse();
}

void SetFaults(const std::string& text) {
  const std::string problem = Faults::Get()->Set(text);
  if (!problem.empty()) throw std::invalid_argument(problem);
}

}  // namespace

void BindDevices(Methods* methods) {
  const auto device = py::arg("device");
  methods->Def("devices_made", &DevicesMade)
      .Def("device_count", &CpuCount)
      .Def("gpu_count", &GpuCount)
      .Def("has_device", &HasDevice, device)
      .Def("set_budget", &SetBudget, device, py::arg("budget_bytes"))
      .Def("set_workspace_limit", &SetWorkspaceLimit, device, py::arg("limit_bytes"))
      .Def(
          "make_room", [](int device) { DeviceOf(device)->budget()->MakeRoom(); }, device)
      .Def("memory_stats", &MemoryStats, device)
      .Def("step_counts", &StepCounts, device)
      .Def("reset_memory_stats", &ResetMemoryStats, device)
      .Def(
          "restart_window", [](int device) { DeviceOf(device)->RestartWindow(); }, device)
      .Def("set_faults", &SetFaults, py::arg("text"))
      .Def("fault_counts", [] { return Faults::Get()->Counts(); });
}

}  // namespace tfswap
