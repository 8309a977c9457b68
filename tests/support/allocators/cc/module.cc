// The Python module _allocators: chains of the device's allocators, and TensorFlow's BFC allocator
// as the memory of a device.

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "allocator/kernel_scope.h"
#include "bfc.h"
#include "chain.h"
#include "replay.h"
#include "tsl/profiler/lib/scoped_memory_debug_annotation.h"

namespace py = pybind11;

namespace tfswap {
namespace {

using WithoutGil = py::call_guard<py::gil_scoped_release>;
using Rows = py::array_t<int64_t, py::array::c_style | py::array::forcecast>;

void Install(const Chain& chain, const std::string& graph, const std::string& text) {
  SlabAllocator* slab = chain.slab();
  if (slab == nullptr) return;
  if (text.empty()) return slab->Remove(graph);
  const absl::Status status = slab->Install(graph, text);
  if (!status.ok()) throw std::invalid_argument(std::string(status.message()));
}

// Graph, op, and ordinal of the output.
using PlannedOutput = std::tuple<std::string, std::string, uint32_t>;

uintptr_t Allocate(const Chain& chain, size_t size_bytes, size_t alignment,
                   const std::optional<PlannedOutput>& op, bool retry) {
  const auto& [graph, name, ordinal] = op.value_or(PlannedOutput());
  KernelScope scope(KernelScope::Role::kKernel, nullptr);
  if (chain.slab() != nullptr) scope.planned = chain.slab()->FindByName(graph, name);
  scope.made[0] = ordinal;
  tsl::profiler::ScopedMemoryDebugAnnotation annotation(name.c_str(), 0, "output", 0,
                                                        [] { return std::string(); });
  tensorflow::AllocationAttributes attributes;
  attributes.retry_on_failure = retry;
  return reinterpret_cast<uintptr_t>(
      chain.outermost()->AllocateRaw(alignment, size_bytes, attributes));
}

py::dict Stats(const Chain& chain) {
  const auto load = chain.outermost()->GetStats().value_or(tensorflow::AllocatorStats());
  py::dict stats;
  stats["allocations"] = load.num_allocs;
  stats["bytes_in_use"] = load.bytes_in_use;
  stats["peak_bytes"] = load.peak_bytes_in_use;
  stats["pool_bytes"] = load.pool_bytes.value_or(0);
  stats["peak_pool_bytes"] = load.peak_pool_bytes.value_or(0);
  if (chain.budget() != nullptr) {
    const BudgetStats budget = chain.budget()->Stats();
    stats["budget_in_use"] = budget.bytes_in_use;
    stats["budget_peak"] = budget.peak_bytes;
  }
  if (chain.slab() != nullptr) {
    const SlabAllocatorStats slab = chain.slab()->Stats();
    stats["slab_bytes"] = slab.slab.committed_bytes;
    stats["slab_claimed_bytes"] = slab.slab.claimed_bytes;
    stats["hits"] = slab.hits;
    stats["lasting"] = slab.lasting;
    stats["moved"] = slab.moved;
    stats["missed"] = slab.missed;
    stats["unplanned"] = slab.unplanned;
    stats["other_size"] = slab.other_size;
    stats["taken"] = slab.taken;
    stats["no_room"] = slab.no_room;
    stats["faults"] = slab.faults;
  }
  return stats;
}

std::pair<int64_t, int64_t> ReplayRows(const Chain& chain, const Rows& events, int64_t height,
                                       int threads, int repeats) {
  const auto rows = events.unchecked<2>();
  std::vector<ReplayEvent> steps;
  for (py::ssize_t i = 0; i < rows.shape(0); ++i) {
    steps.push_back({rows(i, 0), rows(i, 1), rows(i, 2)});
  }
  py::gil_scoped_release without_gil;
  const ReplayResult result = Replay(chain.outermost(), steps, height, threads, repeats);
  return {result.ns, result.failures};
}

PYBIND11_MODULE(_allocators, module) {
  py::class_<Chain>(module, "Chain")
      .def(py::init<const std::string&, int64_t>(), py::arg("names"), py::arg("budget_bytes"))
      .def_property_readonly("names", &Chain::names)
      .def("__enter__", [](py::object self) { return self; })
      .def("__exit__", [](Chain& chain, const py::args&) { chain.Close(); })
      .def("install", &Install, py::arg("graph"), py::arg("text"), WithoutGil())
      .def("allocate", &Allocate, py::arg("size_bytes"), py::arg("alignment") = 64, py::kw_only(),
           py::arg("op") = py::none(), py::arg("retry") = true, WithoutGil())
      .def(
          "free",
          [](const Chain& chain, uintptr_t address) {
            chain.outermost()->DeallocateRaw(reinterpret_cast<void*>(address));
          },
          py::arg("address"), WithoutGil())
      .def(
          "requested",
          [](const Chain& chain, uintptr_t address) {
            return chain.outermost()->RequestedSize(reinterpret_cast<void*>(address));
          },
          py::arg("address"))
      .def(
          "set_budget", [](const Chain& chain, int64_t bytes) { chain.budget()->SetBudget(bytes); },
          py::arg("budget_bytes"), WithoutGil())
      .def(
          "set_workspace_limit",
          [](const Chain& chain, std::optional<int64_t> bytes) {
            chain.workspaces()->SetLimit(bytes.value_or(-1));
          },
          py::arg("limit_bytes"), WithoutGil())
      .def(
          "check", [](const Chain& chain, bool check) { chain.slab()->SetCheck(check); },
          py::arg("check"), WithoutGil())
      .def("stats", &Stats)
      .def("replay", &ReplayRows, py::arg("events"), py::arg("height"), py::arg("threads"),
           py::arg("repeats"));
  py::class_<BfcMemory, std::unique_ptr<BfcMemory, py::nodelete>>(module, "BfcMemory")
      .def_property_readonly("high_water_bytes", &BfcMemory::high_water_bytes);
  module.def("serve_cpu_from_bfc", &ServeCpuFromBfc, py::arg("arena_bytes"),
             py::return_value_policy::reference);
}

}  // namespace
}  // namespace tfswap
