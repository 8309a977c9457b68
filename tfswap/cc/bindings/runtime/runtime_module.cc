// The Python module tfswap._runtime: the bindings of libtfswap.so, documented in
// tfswap/_runtime.pyi. TensorFlow must load libtfswap.so before the module is imported
// (tfswap/ops/library.py).

#include <cstring>
#include <exception>

#include "bindings/runtime/library.h"
#include "device/device_table.h"

namespace py = pybind11;

namespace tfswap {

DeviceAllocator* DeviceOf(int device) {
  DeviceAllocator* allocator = AllocatorOf(device);
  if (allocator == nullptr) {
    throw LibraryError("tfswap: there is no device " + std::to_string(device));
  }
  return allocator;
}

CopyEngine* EngineOf(int device) {
  CopyEngine* engine = CopyEngine::For(DeviceOf(device));
  if (engine == nullptr) {
    throw LibraryError("tfswap: device " + std::to_string(device) + " has run no operation yet");
  }
  return engine;
}

std::vector<CopyEngine*> GpuEngines() {
  std::vector<CopyEngine*> engines;
  for (int i = 0; i < GpuCount(); ++i) {
    DeviceAllocator* allocator = AllocatorOf(kFirstGpu + i);
    CopyEngine* engine = allocator == nullptr ? nullptr : CopyEngine::For(allocator);
    if (engine != nullptr) engines.push_back(engine);
  }
  return engines;
}

namespace {

void Raise(const py::object& type, const char* message) {
  const auto text = py::reinterpret_steal<py::object>(
      PyUnicode_DecodeUTF8(message, static_cast<Py_ssize_t>(std::strlen(message)), "replace"));
  PyErr_SetObject(type.ptr(), text.ptr());
}

void Translate(std::exception_ptr exception) {
  try {
    std::rethrow_exception(exception);
  } catch (const LibraryError& error) {
    Raise(py::module_::import("tfswap.ops.loaded_library").attr("LibraryError"), error.what());
  } catch (const std::invalid_argument& error) {
    Raise(py::reinterpret_borrow<py::object>(PyExc_ValueError), error.what());
  }
}

PYBIND11_MODULE(_runtime, module) {
  py::register_local_exception_translator(&Translate);
  Methods methods(py::class_<Library>(module, "Library").def(py::init<>()));
  BindDevices(&methods);
  BindFarMemory(&methods);
  BindAddresses(&methods);
  BindGraphs(&methods);
  BindCodecs(&module, &methods);
}

}  // namespace
}  // namespace tfswap
