// Bindings for recordings of steps and for planned addresses.

#include "bindings/runtime/library.h"

namespace py = pybind11;

namespace tfswap {
namespace {

void StartRecording(int device, bool host_times) { DeviceOf(device)->StartRecording(host_times); }

Bytes StopRecording(int device) {
  return {DeviceOf(device)->recording()->StopRecording().Serialize()};
}

void InstallLayout(int device, const std::string& fingerprint, const std::string& text) {
  const std::string problem = MessageOf(DeviceOf(device)->slab()->Install(fingerprint, text));
  if (!problem.empty()) throw std::invalid_argument(problem);
}

}  // namespace

void BindAddresses(Methods* methods) {
  const auto device = py::arg("device");
  const auto fingerprint = py::arg("fingerprint");
  methods
      ->Def("start_recording", &StartRecording, device, py::kw_only(),
            py::arg("host_times") = false)
      .Def("stop_recording", &StopRecording, device)
      .Def("install_layout", &InstallLayout, device, fingerprint, py::arg("text"))
      .Def(
          "remove_layout",
          [](int device, const std::string& fingerprint) {
            DeviceOf(device)->slab()->Remove(fingerprint);
          },
          device, fingerprint)
      .Def(
          "clear_layouts", [](int device) { DeviceOf(device)->slab()->Clear(); }, device)
      .Def(
          "always_slab",
          [](int device, bool always) {
            ThrowUnlessEmpty(MessageOf(DeviceOf(device)->slab()->SetAlways(always)));
          },
          device, py::arg("always"))
      .Def(
          "check_slab", [](int device, bool check) { DeviceOf(device)->slab()->SetCheck(check); },
          device, py::arg("check"))
      .Def("granule_bytes", [] { return Slab::kGranuleBytes; });
}

}  // namespace tfswap
