// The Python module tfswap._core: the parts of the core that Python calls.

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <limits>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings/codec_bindings.h"
#include "bindings/gpu_bindings.h"
#include "bindings/packing_bindings.h"
#include "bindings/spill_bindings.h"
#include "core/memory/allocation_wait_policy.h"
#include "core/memory/copy.h"
#include "core/simulate/load_changes.h"
#include "core/simulate/local_search.h"
#include "core/simulate/max_tree.h"
#include "core/simulate/repetition.h"
#include "core/simulate/simulator.h"

namespace py = pybind11;

namespace tfswap {
namespace {

template <typename T>
using Array = py::array_t<T, py::array::c_style | py::array::forcecast>;

template <typename T>
std::vector<T> ToVector(const Array<T>& array) {
  if (array.ndim() != 1) throw std::invalid_argument("an array of one dimension is needed");
  return std::vector<T>(array.data(), array.data() + array.size());
}

template <typename T>
py::array_t<T> ToArray(const std::vector<T>& values) {
  return py::array_t<T>(static_cast<py::ssize_t>(values.size()), values.data());
}

std::shared_ptr<Timeline> MakeTimeline(const Array<int64_t>& op_start_ns,
                                       const Array<int64_t>& op_end_ns, int64_t resident_bytes,
                                       const Array<int64_t>& buffer_bytes,
                                       const Array<int64_t>& buffer_alloc_ns,
                                       const Array<int64_t>& buffer_free_ns,
                                       const Array<int32_t>& absences, int64_t step_ns) {
  if (absences.ndim() != 2 || absences.shape(1) != 5) {
    throw std::invalid_argument(
        "absences: rows of (buffer, producer_op, after_op, before_op, far_copy) are needed");
  }
  TimelineData data;
  data.op_start_ns = ToVector(op_start_ns);
  data.op_end_ns = ToVector(op_end_ns);
  data.resident_bytes = resident_bytes;
  data.buffer_bytes = ToVector(buffer_bytes);
  data.buffer_alloc_ns = ToVector(buffer_alloc_ns);
  data.buffer_free_ns = ToVector(buffer_free_ns);
  data.step_ns = step_ns;
  const auto rows = absences.unchecked<2>();
  data.absences.reserve(static_cast<size_t>(rows.shape(0)));
  for (py::ssize_t i = 0; i < rows.shape(0); ++i) {
    data.absences.push_back({rows(i, 0), rows(i, 1), rows(i, 2), rows(i, 3), rows(i, 4)});
  }
  return std::make_shared<Timeline>(std::move(data));
}

// Convert rows of (absence, gate_op, trigger_op), or of all fields of a swap.
std::vector<Swap> ToSwaps(const Array<int64_t>& rows) {
  if (rows.ndim() != 2 || (rows.shape(1) != 3 && rows.shape(1) != 8)) {
    throw std::invalid_argument("swaps: rows of 3 or of 8 fields are needed");
  }
  const bool full = rows.shape(1) == 8;
  const auto view = rows.unchecked<2>();
  std::vector<Swap> swaps(static_cast<size_t>(view.shape(0)));
  for (py::ssize_t i = 0; i < view.shape(0); ++i) {
    Swap& swap = swaps[static_cast<size_t>(i)];
    swap.absence = static_cast<int32_t>(view(i, 0));
    swap.gate_op = static_cast<int32_t>(view(i, 1));
    swap.trigger_op = static_cast<int32_t>(view(i, 2));
    if (!full) continue;
    swap.tier = static_cast<int32_t>(view(i, 3));
    swap.sections = static_cast<int32_t>(view(i, 4));
    swap.far_bytes = view(i, 5);
    swap.encode_ns = view(i, 6);
    swap.decode_ns = view(i, 7);
  }
  return swaps;
}

// A result and the timeline from which some of its values are computed.
struct Simulated : SimResult {
  std::shared_ptr<const Timeline> timeline;
};

Simulated SimulateRows(const std::shared_ptr<Timeline>& timeline, const Array<int64_t>& rows,
                       const std::vector<Tier>& tiers, std::optional<int64_t> budget_bytes,
                       const std::vector<std::pair<int32_t, int32_t>>& order) {
  const std::vector<Swap> swaps = ToSwaps(rows);
  std::vector<OrderEdge> edges;
  for (const auto& [before, after] : order) edges.push_back({before, after});
  py::gil_scoped_release without_gil;
  return {Simulate(*timeline, swaps, tiers, budget_bytes, edges), timeline};
}

// Return the load as a step function: (time_ns, bytes from then on). It keeps all changes at one
// time, in order, so that its largest value is the peak.
std::pair<py::array_t<int64_t>, py::array_t<int64_t>> LoadCurve(const Simulated& result) {
  std::vector<int64_t> time_ns = {0};
  std::vector<int64_t> bytes = {result.timeline->data().resident_bytes};
  for (const LoadChange& change : LoadChanges(*result.timeline, result)) {
    time_ns.push_back(change.time_ns);
    bytes.push_back(bytes.back() + change.delta);
  }
  return {ToArray(time_ns), ToArray(bytes)};
}

std::vector<std::tuple<int32_t, std::string, int32_t, int64_t>> Stalls(const Simulated& result) {
  std::vector<std::tuple<int32_t, std::string, int32_t, int64_t>> stalls;
  for (const Stall& stall : result.stalls) {
    stalls.emplace_back(stall.op, StallCauseName(stall.cause), stall.swap, stall.ns);
  }
  return stalls;
}

py::array_t<int64_t> AllSwapTimes(const Simulated& result) {
  py::array_t<int64_t> rows({static_cast<py::ssize_t>(result.swap_times.size()), py::ssize_t{5}});
  auto view = rows.mutable_unchecked<2>();
  for (py::ssize_t i = 0; i < view.shape(0); ++i) {
    const SwapTimes& times = result.swap_times[static_cast<size_t>(i)];
    view(i, 0) = times.out_start_ns;
    view(i, 1) = times.out_end_ns;
    view(i, 2) = times.released_ns;
    view(i, 3) = times.in_start_ns;
    view(i, 4) = times.in_end_ns;
  }
  return rows;
}

std::pair<py::array_t<int32_t>, py::array_t<int32_t>> OpPositions(const Timeline& timeline) {
  const auto num_ops = static_cast<int32_t>(timeline.data().op_start_ns.size());
  std::vector<int32_t> starts, ends;
  for (int32_t op = 0; op < num_ops; ++op) {
    starts.push_back(timeline.start_position(op));
    ends.push_back(timeline.end_position(op));
  }
  return {ToArray(starts), ToArray(ends)};
}

std::pair<py::array_t<int64_t>, py::array_t<int64_t>> Events(const Timeline& timeline) {
  std::vector<int64_t> time_ns;
  for (const Timeline::Event& event : timeline.events()) time_ns.push_back(event.time_ns);
  return {ToArray(time_ns), ToArray(timeline.load().values())};
}

void BindSimulator(py::module_& module) {
  py::class_<Tier>(module, "Tier")
      .def(py::init<double, double, int64_t, int64_t, int64_t, bool>(), py::arg("out_bytes_per_s"),
           py::arg("in_bytes_per_s"), py::arg("out_latency_ns") = 0, py::arg("in_latency_ns") = 0,
           py::arg("capacity_bytes") = std::numeric_limits<int64_t>::max(),
           py::arg("in_sections") = false)
      .def("out_duration_ns", &Tier::OutDuration, py::arg("bytes"))
      .def("in_duration_ns", &Tier::InDuration, py::arg("bytes"));

  py::class_<Timeline, std::shared_ptr<Timeline>>(module, "Timeline")
      .def(py::init(&MakeTimeline), py::arg("op_start_ns"), py::arg("op_end_ns"),
           py::arg("resident_bytes"), py::arg("buffer_bytes"), py::arg("buffer_alloc_ns"),
           py::arg("buffer_free_ns"), py::arg("absences"), py::arg("step_ns"))
      .def("events", &Events)
      .def("op_positions", &OpPositions);

  py::class_<Simulated>(module, "SimResult")
      .def_readonly("step_ns", &Simulated::step_ns)
      .def_readonly("stall_ns", &Simulated::stall_ns)
      .def_readonly("peak_bytes", &Simulated::peak_bytes)
      .def_readonly("peak_ns", &Simulated::peak_ns)
      .def_property_readonly(
          "peak_op",
          [](const Simulated& result) { return result.timeline->LastStarted(result.peak_events); })
      .def_property_readonly(
          "peak_holders",
          [](const Simulated& result) { return PeakHolders(*result.timeline, result); })
      .def_readonly("bytes_out", &Simulated::bytes_out)
      .def_readonly("bytes_in", &Simulated::bytes_in)
      .def_readonly("far_peak_bytes", &Simulated::far_peak_bytes)
      .def_readonly("fits", &Simulated::fits)
      .def_property_readonly("stalls", &Stalls)
      .def("swap_times", &AllSwapTimes)
      .def("load_curve", &LoadCurve);

  module.def("simulate", &SimulateRows, py::arg("timeline"), py::arg("swaps"), py::arg("tiers"),
             py::arg("budget_bytes") = py::none(),
             py::arg("order") = std::vector<std::pair<int32_t, int32_t>>());
}

std::unique_ptr<LocalSearch> MakeSearch(const std::shared_ptr<Timeline>& timeline,
                                        const Array<int64_t>& rows, const Array<bool>& usable,
                                        const Array<int32_t>& op_context,
                                        const Array<int32_t>& absence_context,
                                        const Array<int64_t>& forms, int64_t min_bytes,
                                        const Tier& tier, int64_t limit_bytes,
                                        std::optional<Tier> slow, double copying_ns_per_byte,
                                        int64_t enough_ns, uint64_t seed) {
  SearchRules rules;
  rules.usable = ToVector(usable);
  rules.op_context = ToVector(op_context);
  rules.absence_context = ToVector(absence_context);
  const std::vector<int64_t> numbers = ToVector(forms);
  for (size_t i = 0; i + 2 < numbers.size(); i += 3) {
    rules.forms.push_back({numbers[i], numbers[i + 1], numbers[i + 2]});
  }
  rules.min_bytes = min_bytes;
  rules.tier = tier;
  rules.limit_bytes = limit_bytes;
  rules.slow = slow;
  rules.copying_ns_per_byte = copying_ns_per_byte;
  rules.enough_ns = enough_ns;
  return std::make_unique<LocalSearch>(timeline, std::move(rules), ToSwaps(rows), seed);
}

void BindLocalSearch(py::module_& module) {
  py::class_<LocalSearch>(module, "LocalSearch")
      .def(py::init(&MakeSearch), py::arg("timeline"), py::arg("swaps"), py::arg("usable"),
           py::arg("op_context"), py::arg("absence_context"), py::arg("forms"),
           py::arg("min_bytes"), py::arg("tier"), py::arg("limit_bytes"), py::arg("slow"),
           py::arg("copying_ns_per_byte"), py::arg("enough_ns"), py::arg("seed"))
      .def("run", &LocalSearch::Run, py::arg("seconds"), py::arg("tries"),
           py::call_guard<py::gil_scoped_release>())
      .def_property_readonly("stall_ns", &LocalSearch::stall_ns)
      .def_property_readonly("tried", &LocalSearch::tried)
      .def("swaps", [](const LocalSearch& search) {
        using Row = std::tuple<int32_t, int32_t, int32_t, int32_t, int32_t, Bytes, Nanoseconds,
                               Nanoseconds>;
        std::vector<Row> rows;
        for (const Swap& swap : search.swaps()) {
          rows.emplace_back(swap.absence, swap.gate_op, swap.trigger_op, swap.tier, swap.sections,
                            swap.far_bytes, swap.encode_ns, swap.decode_ns);
        }
        return rows;
      });
}

void BindRepetition(py::module_& module) {
  module.def(
      "longest_repetition",
      [](const Array<int64_t>& symbols, int64_t min_length) {
        const Repetition found = LongestRepetition(ToVector(symbols), min_length);
        return std::make_pair(found.start, found.length);
      },
      py::arg("symbols"), py::arg("min_length"));
}

void BindMaxTree(py::module_& module) {
  py::class_<MaxTree>(module, "MaxTree")
      .def(py::init([](const Array<int64_t>& values) { return MaxTree(ToVector(values)); }),
           py::arg("values"))
      .def("add", &MaxTree::Add, py::arg("begin"), py::arg("end"), py::arg("delta"))
      .def("max", &MaxTree::Max);
}

void BindAllocationWaitPolicy(py::module_& module) {
  py::class_<AllocationWaitPolicy>(module, "AllocationWaitPolicy")
      .def(py::init([](int64_t now_ns, int64_t worked_ns) {
             return AllocationWaitPolicy({now_ns, worked_ns});
           }),
           py::arg("now_ns"), py::arg("worked_ns"))
      .def(
          "ends_at",
          [](AllocationWaitPolicy& patience, int64_t now_ns, int64_t worked_ns, bool released,
             bool alive, bool others_are_runnable) {
            return patience.ShouldStop({now_ns, worked_ns}, released, alive,
                                       [&] { return others_are_runnable; });
          },
          py::arg("now_ns"), py::arg("worked_ns"), py::arg("released") = false,
          py::arg("alive") = false, py::arg("others_are_runnable") = false);
}

}  // namespace
}  // namespace tfswap

PYBIND11_MODULE(_core, module) {
  module.doc() = "The parts of tfswap that need no TensorFlow.";
  tfswap::BindSimulator(module);
  tfswap::BindLocalSearch(module);
  tfswap::BindRepetition(module);
  tfswap::BindMaxTree(module);
  tfswap::BindAllocationWaitPolicy(module);
  tfswap::BindPacking(module);
  tfswap::BindGpu(module);
  tfswap::BindSpill(module);
  tfswap::BindCodecs(module);
  module.def("measure_copy_speed", &tfswap::MeasureCopySpeed, py::arg("bytes"), py::arg("repeats"),
             py::call_guard<py::gil_scoped_release>());
}
