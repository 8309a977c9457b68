#ifndef TFSWAP_CC_BINDINGS_RUNTIME_LIBRARY_H_
#define TFSWAP_CC_BINDINGS_RUNTIME_LIBRARY_H_

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "kernels/copy_engine.h"

namespace tfswap {

// tfswap._runtime.Library, which has only static methods.
struct Library {};

// Adds methods to Library. They run without Python's global interpreter lock, because they may do
// I/O or wait for threads that need the lock.
class __attribute__((visibility("hidden"))) Methods {
 public:
  explicit Methods(const pybind11::class_<Library>& library) : library_(library) {}

  template <typename Function, typename... Extra>
  Methods& Def(const char* name, Function&& function, const Extra&... extra) {
    return DefLocked(name, std::forward<Function>(function), extra...,
                     pybind11::call_guard<pybind11::gil_scoped_release>());
  }
  // For methods that create Python objects; they release the lock themselves.
  template <typename Function, typename... Extra>
  Methods& DefLocked(const char* name, Function&& function, const Extra&... extra) {
    library_.def_static(name, std::forward<Function>(function), extra...);
    return *this;
  }

 private:
  pybind11::class_<Library> library_;
};

// Becomes tfswap.ops.loaded_library.LibraryError in Python.
struct LibraryError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

inline void ThrowUnlessEmpty(const std::string& problem) {
  if (!problem.empty()) throw LibraryError(problem);
}
// Return the status's message; "" if it is OK.
inline std::string MessageOf(const absl::Status& status) {
  return status.ok() ? "" : std::string(status.message());
}

// Becomes a str in Python; bytes that are not UTF-8 are replaced.
struct Text {
  std::string text;
};
// A str, bytes or os.PathLike in Python. (Not std::filesystem::path: its layout in libstdc++ 8,
// which wheels are compiled with, is not that of the libstdc++ that they run with.)
struct Path {
  std::string name;
};
// Becomes bytes in Python.
struct Bytes {
  std::string bytes;
};
// Becomes a dict in Python, in this order.
struct Counts {
  std::vector<std::pair<std::string, int64_t>> counts;
};

// Return a device's allocator and copy engine. Throw LibraryError if there is no such device.
DeviceAllocator* DeviceOf(int device);
CopyEngine* EngineOf(int device);
// Return the copy engines of the GPUs that have run an op.
std::vector<CopyEngine*> GpuEngines();

void BindDevices(Methods* methods);
void BindFarMemory(Methods* methods);
void BindAddresses(Methods* methods);
void BindGraphs(Methods* methods);
void BindCodecs(pybind11::module_* module, Methods* methods);

}  // namespace tfswap

namespace pybind11::detail {

template <>
struct type_caster<tfswap::Text> {
  PYBIND11_TYPE_CASTER(tfswap::Text, const_name("str"));
  bool load(handle, bool) { return false; }
  static handle cast(const tfswap::Text& value, return_value_policy, handle) {
    const std::string& text = value.text;
    return PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "replace");
  }
};

template <>
struct type_caster<tfswap::Path> {
  PYBIND11_TYPE_CASTER(tfswap::Path, const_name("str | os.PathLike[str]"));
  bool load(handle from, bool) {
    PyObject* encoded = nullptr;
    if (PyUnicode_FSConverter(from.ptr(), &encoded) == 0) {
      PyErr_Clear();
      return false;
    }
    value.name = static_cast<std::string>(reinterpret_steal<bytes>(encoded));
    return true;
  }
};

template <>
struct type_caster<tfswap::Bytes> {
  PYBIND11_TYPE_CASTER(tfswap::Bytes, const_name("bytes"));
  bool load(handle, bool) { return false; }
  static handle cast(const tfswap::Bytes& value, return_value_policy, handle) {
    return bytes(value.bytes).release();
  }
};

template <>
struct type_caster<tfswap::Counts> {
  PYBIND11_TYPE_CASTER(tfswap::Counts, const_name("dict[str, int]"));
  bool load(handle, bool) { return false; }
  static handle cast(const tfswap::Counts& value, return_value_policy, handle) {
    dict found;
    for (const auto& [name, count] : value.counts) found[str(name)] = count;
    return found.release();
  }
};

}  // namespace pybind11::detail

#endif  // TFSWAP_CC_BINDINGS_RUNTIME_LIBRARY_H_
