#include "bindings/gpu_bindings.h"

#include <pybind11/stl.h>

#include <array>
#include <utility>
#include <vector>

#include "core/gpu/gpu.h"
#include "core/gpu/gpu_step.h"
#include "core/gpu/hazard_tracker.h"
#include "core/memory/host_pool.h"

namespace py = pybind11;

namespace tfswap {
namespace {

const void* Pointer(uintptr_t address) { return reinterpret_cast<const void*>(address); }
uintptr_t Number(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer); }

// A GPU written in Python. Events are numbers.
class PythonGpu : public Gpu {
 public:
  Event Record(Queue queue) override {
    return reinterpret_cast<Event>(Call("record", queue).cast<uintptr_t>());
  }
  void Wait(Queue queue, Event event) override { Call("wait", queue, Number(event)); }
  bool HasHappened(Event event) override {
    return Call("has_happened", Number(event)).cast<bool>();
  }
  void Recycle(Event event) override { Call("recycle", Number(event)); }
  bool Move(Queue queue, const Transfer& transfer) override {
    return Call("move", queue, transfer).cast<bool>();
  }

 private:
  template <typename... Arguments>
  py::object Call(const char* name, Arguments... arguments) {
    const py::function function = py::get_override(static_cast<Gpu*>(this), name);
    if (!function) throw py::type_error(std::string("a GPU needs a method ") + name);
    return function(arguments...);
  }
};

Transfer Plain(uintptr_t block, uintptr_t host, int64_t bytes) {
  return {const_cast<void*>(Pointer(block)), bytes, const_cast<void*>(Pointer(host)), bytes};
}

Transfer Encoded(uintptr_t block, int64_t bytes, uintptr_t host, int64_t host_bytes) {
  Transfer transfer{const_cast<void*>(Pointer(block)), bytes, const_cast<void*>(Pointer(host)),
                    host_bytes};
  transfer.form.kind = Form::Kind::kEncoded;
  return transfer;
}

// start_ns, end_ns, thread, begin_mark, end_mark
using HostOp = std::array<int64_t, 5>;
// alloc_ns, free_ns, alloc_thread, free_thread
using HostBuffer = std::array<int64_t, 4>;
using Pair = std::pair<int64_t, int64_t>;

// Call ConvertToGpuTime() on a recording; `host_waits_ns` are the waits for memory in each op, if
// any. Return (start_ns, end_ns, wait_ns) by op and (alloc_ns, free_ns) by buffer.
std::pair<std::vector<std::array<int64_t, 3>>, std::vector<Pair>> Moved(
    const std::vector<int64_t>& marks_ns, const std::vector<Pair>& waits,
    const std::vector<HostOp>& ops, const std::vector<HostBuffer>& buffers,
    const std::vector<std::pair<int32_t, int32_t>>& accesses,
    const std::vector<int64_t>& host_waits_ns) {
  StepTrace trace;
  HostRecording host;
  for (const auto& [start_ns, end_ns, thread, begin_mark, end_mark] : ops) {
    trace.ops.emplace_back();
    trace.ops.back().start_ns = start_ns;
    trace.ops.back().end_ns = end_ns;
    if (!host_waits_ns.empty()) trace.ops.back().wait_ns = host_waits_ns[trace.ops.size() - 1];
    host.ops.push_back({static_cast<int32_t>(thread), static_cast<int32_t>(begin_mark),
                        static_cast<int32_t>(end_mark)});
  }
  for (const auto& [alloc_ns, free_ns, alloc_thread, free_thread] : buffers) {
    trace.buffers.push_back({1, alloc_ns, free_ns, 0, 0});
    host.buffers.push_back({static_cast<int32_t>(alloc_thread), static_cast<int32_t>(free_thread)});
  }
  for (const auto& [op, buffer] : accesses) trace.accesses.push_back({op, 0, buffer, 0});
  ConvertToGpuTime({marks_ns, waits}, host, &trace);
  std::pair<std::vector<std::array<int64_t, 3>>, std::vector<Pair>> moved;
  for (const OpRecord& op : trace.ops) {
    moved.first.push_back({op.start_ns, op.end_ns, op.wait_ns});
  }
  for (const BufferRecord& buffer : trace.buffers) {
    moved.second.emplace_back(buffer.alloc_ns, buffer.free_ns);
  }
  return moved;
}

}  // namespace

void BindGpu(py::module_& module) {
  py::enum_<Queue>(module, "Queue")
      .value("COMPUTE", Queue::kCompute)
      .value("OUT", Queue::kOut)
      .value("IN", Queue::kIn)
      .value("FILE_OUT", Queue::kFileOut)
      .value("FILE_IN", Queue::kFileIn);
  py::class_<Transfer>(module, "Transfer")
      .def_property_readonly("block", [](const Transfer& self) { return Number(self.block); })
      .def_property_readonly("host", [](const Transfer& self) { return Number(self.host); })
      .def_readonly("block_bytes", &Transfer::block_bytes)
      .def_readonly("host_bytes", &Transfer::host_bytes)
      .def_property_readonly(
          "encoded", [](const Transfer& self) { return self.form.kind == Form::Kind::kEncoded; });
  py::class_<Gpu, PythonGpu>(module, "Gpu").def(py::init<>());

  py::class_<HazardTracker> tracker(module, "HazardTracker");
  py::enum_<HazardTracker::Memory>(tracker, "Memory")
      .value("IN_ORDER", HazardTracker::Memory::kInOrder)
      .value("STREAM_ORDERED", HazardTracker::Memory::kStreamOrdered);
  py::class_<HazardTracker::PiecewiseMove>(tracker, "Whole");
  tracker
      .def(py::init<Gpu*, HazardTracker::Memory>(), py::arg("gpu"), py::arg("memory"),
           py::keep_alive<1, 2>())
      .def("op_begins", &HazardTracker::OpBegins)
      .def("before_use",
           [](HazardTracker& self, uintptr_t block) { self.BeforeUse(Pointer(block)); })
      .def("acquired", [](HazardTracker& self, uintptr_t block,
                          int64_t bytes) { self.Acquired(Pointer(block), bytes); })
      .def("released", [](HazardTracker& self, uintptr_t block,
                          int64_t bytes) { self.Released(Pointer(block), bytes); })
      .def("copy_out",
           [](HazardTracker& self, uintptr_t host, uintptr_t block, int64_t bytes) {
             return self.CopyOut(const_cast<void*>(Pointer(host)), Pointer(block), bytes);
           })
      .def("copy_in",
           [](HazardTracker& self, uintptr_t block, uintptr_t host, int64_t bytes) {
             return self.CopyIn(const_cast<void*>(Pointer(block)), Pointer(host), bytes);
           })
      .def("encode_out",
           [](HazardTracker& self, uintptr_t host, int64_t host_bytes, uintptr_t block,
              int64_t bytes) { return self.MoveOut(Encoded(block, bytes, host, host_bytes)); })
      .def("decode_in",
           [](HazardTracker& self, uintptr_t block, int64_t bytes, uintptr_t host,
              int64_t host_bytes) { return self.MoveIn(Encoded(block, bytes, host, host_bytes)); })
      .def("begin_out",
           [](HazardTracker& self, uintptr_t block) { return self.BeginOut(Pointer(block)); })
      .def("begin_in",
           [](HazardTracker& self, uintptr_t block) { return self.BeginIn(Pointer(block)); })
      .def("piece_out",
           [](HazardTracker& self, const HazardTracker::PiecewiseMove& whole, uintptr_t host,
              uintptr_t block,
              int64_t bytes) { return self.MovePieceOut(whole, Plain(block, host, bytes)); })
      .def("piece_in",
           [](HazardTracker& self, const HazardTracker::PiecewiseMove& whole, uintptr_t block,
              uintptr_t host,
              int64_t bytes) { return self.MovePieceIn(whole, Plain(block, host, bytes)); })
      .def("is_idle", [](HazardTracker& self, uintptr_t host,
                         int64_t bytes) { return self.IsIdle(Pointer(host), bytes); })
      .def_property_readonly("active", &HazardTracker::active)
      .def_property_readonly("waits", &HazardTracker::waits)
      .def_property_readonly("remembered", &HazardTracker::remembered);

  module.def("move_to_gpu", &Moved, py::arg("marks_ns"), py::arg("waits"), py::arg("ops"),
             py::arg("buffers"), py::arg("accesses"),
             py::arg("host_waits_ns") = std::vector<int64_t>());

  py::class_<HostPool>(module, "HostPool")
      .def(py::init([](py::function taken, py::function given_back, int64_t arena_bytes) {
             const HostPool::Source system = HostPool::System(arena_bytes);
             return std::make_unique<HostPool>(HostPool::Source{
                 [taken, system](int64_t bytes) {
                   py::gil_scoped_acquire gil;
                   HostPool::Source::Taken block = system.take(bytes);
                   block.refusal = taken(Number(block.begin), bytes).cast<std::string>();
                   if (block.refusal.empty()) return block;
                   system.give_back(block.begin, bytes);
                   block.begin = nullptr;
                   return block;
                 },
                 [given_back, system](void* begin, int64_t bytes) {
                   py::gil_scoped_acquire gil;
                   given_back(Number(begin), bytes);
                   system.give_back(begin, bytes);
                 },
                 arena_bytes});
           }),
           py::arg("taken"), py::arg("given_back"), py::arg("arena_bytes"))
      .def("allocate", [](HostPool& self, int64_t bytes) { return Number(self.Allocate(bytes)); })
      .def(
          "free",
          [](HostPool& self, uintptr_t block, int64_t bytes) {
            self.Free(const_cast<void*>(Pointer(block)), bytes);
          },
          py::call_guard<py::gil_scoped_release>())
      .def("prepare", &HostPool::Prepare, py::arg("sizes"))
      .def("set_limit", &HostPool::SetLimit)
      .def("trim", &HostPool::Trim)
      .def("why_full", [](const HostPool& self,
                          int64_t missing_bytes) { return WhyFull(self.Stats(), missing_bytes); })
      .def_property_readonly("bytes_in_use",
                             [](const HostPool& self) { return self.Stats().bytes_in_use; })
      .def_property_readonly("bytes_cached",
                             [](const HostPool& self) { return self.Stats().bytes_cached; });
}

}  // namespace tfswap
