#include "bindings/spill_bindings.h"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "bindings/buffer_bytes.h"
#include "core/memory/copy.h"
#include "core/spill/checkpoint_file.h"
#include "core/spill/extents.h"
#include "core/spill/spill_file.h"
#include "core/spill/spill_speed.h"
#include "core/util/faults.h"

namespace py = pybind11;

namespace tfswap {
namespace {

[[noreturn]] void ThrowOsError(const std::string& text) {
  PyErr_SetString(PyExc_OSError, text.c_str());
  throw py::error_already_set();
}

std::unique_ptr<SpillFile> MakeSpillFile(const std::string& folder, int64_t limit_bytes,
                                         bool checksums, bool io_uring) {
  std::string problem;
  std::unique_ptr<SpillFile> file;
  {
    py::gil_scoped_release without_gil;
    file = SpillFile::Create(folder, limit_bytes, &problem, {checksums, io_uring});
  }
  if (file == nullptr) ThrowOsError(problem);
  return file;
}

void Write(SpillFile* file, int64_t offset, const py::buffer& data) {
  const py::buffer_info info = data.request();
  const auto [at, bytes] = BytesOf(info);
  std::string error;
  {
    py::gil_scoped_release without_gil;
    error = file->Write(offset, at, static_cast<int64_t>(bytes));
  }
  if (!error.empty()) ThrowOsError(error);
}

// Of a SpillFile or a CheckpointValue.
template <typename Source>
void Read(Source* source, int64_t offset, const py::buffer& data) {
  const py::buffer_info info = data.request(/*writable=*/true);
  const auto [at, bytes] = BytesOf(info);
  std::string error;
  {
    py::gil_scoped_release without_gil;
    error = source->Read(offset, at, static_cast<int64_t>(bytes));
  }
  if (!error.empty()) ThrowOsError(error);
}

std::shared_ptr<const CheckpointValue> FindValue(const std::string& path, int64_t offset,
                                                 int64_t size_bytes, const py::buffer& known) {
  const py::buffer_info info = known.request();
  const auto [at, bytes] = BytesOf(info);
  py::gil_scoped_release without_gil;
  return CheckpointValue::Find(path, offset, size_bytes, static_cast<const char*>(at),
                               static_cast<int64_t>(bytes));
}

void SetFaults(const std::string& text) {
  const std::string problem = Faults::Get()->Set(text);
  if (!problem.empty()) throw std::invalid_argument(problem);
}

SpillSpeed MeasureSpeed(const std::string& folder, int64_t bytes, double seconds, bool checksums,
                        bool io_uring) {
  SpillSpeed speed;
  std::string problem;
  {
    py::gil_scoped_release without_gil;
    problem = MeasureSpill(folder, bytes, seconds, &speed, {checksums, io_uring});
  }
  if (!problem.empty()) ThrowOsError(problem);
  return speed;
}

}  // namespace

void BindSpill(py::module_& module) {
  py::class_<Extents>(module, "Extents")
      .def(py::init<>())
      .def("take", &Extents::Take, py::arg("bytes"))
      .def("give_back", &Extents::Release, py::arg("offset"), py::arg("bytes"))
      .def("grow", &Extents::Grow, py::arg("bytes"))
      .def_property_readonly("end", &Extents::end)
      .def_property_readonly("free_bytes", &Extents::free_bytes)
      .def_property_readonly("free_bytes_at_end", &Extents::free_bytes_at_end)
      .def_property_readonly("largest_free_bytes", &Extents::largest_free_bytes);

  py::class_<SpillStats>(module, "SpillStats")
      .def_readonly("bytes_in_use", &SpillStats::bytes_in_use)
      .def_readonly("peak_bytes_in_use", &SpillStats::peak_bytes_in_use)
      .def_readonly("file_bytes", &SpillStats::file_bytes)
      .def_readonly("limit_bytes", &SpillStats::limit_bytes)
      .def_readonly("bytes_written", &SpillStats::bytes_written)
      .def_readonly("bytes_read", &SpillStats::bytes_read)
      .def_readonly("write_ns", &SpillStats::write_ns)
      .def_readonly("read_ns", &SpillStats::read_ns);

  py::class_<SpillFile>(module, "SpillFile")
      .def(py::init(&MakeSpillFile), py::arg("folder"), py::arg("limit_bytes") = 0, py::kw_only(),
           py::arg("checksums") = true, py::arg("io_uring") = true)
      .def("allocate", &SpillFile::Allocate, py::arg("bytes"),
           py::call_guard<py::gil_scoped_release>())
      .def("free", &SpillFile::Free, py::arg("offset"), py::arg("bytes"))
      .def("write", &Write, py::arg("offset"), py::arg("data"))
      .def("read", &Read<SpillFile>, py::arg("offset"), py::arg("data"))
      .def("stats", &SpillFile::Stats)
      .def("reset_peak", &SpillFile::ResetPeak)
      .def_property_readonly("problem", &SpillFile::problem)
      .def_property_readonly("engine", &SpillFile::engine)
      .def_property_readonly("folder", &SpillFile::folder);

  py::class_<CheckpointValue, std::shared_ptr<CheckpointValue>>(module, "CheckpointValue")
      .def_static(
          "find",
          [](const std::string& path, int64_t offset, int64_t size_bytes, const py::buffer& known) {
            return std::const_pointer_cast<CheckpointValue>(
                FindValue(path, offset, size_bytes, known));
          },
          py::arg("path"), py::arg("offset"), py::arg("size_bytes"), py::arg("known"))
      .def("read", &Read<CheckpointValue>, py::arg("begin"), py::arg("data"));

  py::class_<SpillSpeed>(module, "SpillSpeed")
      .def_readonly("write_bytes_per_s", &SpillSpeed::write_bytes_per_s)
      .def_readonly("read_bytes_per_s", &SpillSpeed::read_bytes_per_s)
      .def_readonly("both_write_bytes_per_s", &SpillSpeed::both_write_bytes_per_s)
      .def_readonly("both_read_bytes_per_s", &SpillSpeed::both_read_bytes_per_s);

  module.def("set_faults", &SetFaults, py::arg("text"));
  module.def("fault_counts", [] { return Faults::Get()->Counts(); });
  module.def("measure_spill", &MeasureSpeed, py::arg("folder"), py::arg("bytes"),
             py::arg("seconds") = 0.5, py::kw_only(), py::arg("checksums") = true,
             py::arg("io_uring") = true);
  module.def(
      "buffer_checksum",
      [](const py::buffer& data, bool portable) {
        const py::buffer_info info = data.request();
        const auto [at, bytes] = BytesOf(info);
        return BufferChecksum(at, bytes, portable);
      },
      py::arg("data"), py::arg("portable") = false);
}

}  // namespace tfswap
