#include "bindings/hazard_bindings.h"

#include <pybind11/stl.h>

#include "core/card.h"
#include "core/hazard_tracker.h"

namespace py = pybind11;

namespace tfswap {
namespace {

const void* Pointer(uintptr_t address) { return reinterpret_cast<const void*>(address); }
uintptr_t Number(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer); }

// A card written in Python. Events are numbers.
class PythonCard : public Card {
 public:
  Event Record(Queue queue) override {
    return reinterpret_cast<Event>(Call("record", queue).cast<uintptr_t>());
  }
  void Wait(Queue queue, Event event) override { Call("wait", queue, Number(event)); }
  bool HasHappened(Event event) override {
    return Call("has_happened", Number(event)).cast<bool>();
  }
  void Recycle(Event event) override { Call("recycle", Number(event)); }
  bool Copy(Queue queue, void* to, const void* from, int64_t bytes) override {
    return Call("copy", queue, Number(to), Number(from), bytes).cast<bool>();
  }

 private:
  template <typename... Arguments>
  py::object Call(const char* name, Arguments... arguments) {
    const py::function function = py::get_override(static_cast<Card*>(this), name);
    if (!function) throw py::type_error(std::string("a card needs a method ") + name);
    return function(arguments...);
  }
};

}  // namespace

void BindHazards(py::module_& module) {
  py::enum_<Queue>(module, "Queue")
      .value("COMPUTE", Queue::kCompute)
      .value("OUT", Queue::kOut)
      .value("IN", Queue::kIn);
  py::class_<Card, PythonCard>(module, "Card").def(py::init<>());

  py::class_<HazardTracker> tracker(module, "HazardTracker");
  py::enum_<HazardTracker::Memory>(tracker, "Memory")
      .value("IN_ORDER", HazardTracker::Memory::kInOrder)
      .value("STREAM_ORDERED", HazardTracker::Memory::kStreamOrdered);
  tracker
      .def(py::init<Card*, HazardTracker::Memory>(), py::arg("card"), py::arg("memory"),
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
      .def("is_idle", [](HazardTracker& self, uintptr_t host,
                         int64_t bytes) { return self.IsIdle(Pointer(host), bytes); })
      .def_property_readonly("active", &HazardTracker::active)
      .def_property_readonly("waits", &HazardTracker::waits)
      .def_property_readonly("remembered", &HazardTracker::remembered);
}

}  // namespace tfswap
