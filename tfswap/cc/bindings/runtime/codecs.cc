// Bindings for codecs: samples of their ratios, errors of lossy codecs, and codecs that run on
// GPUs.

#include <pybind11/numpy.h>

#include <optional>

#include "bindings/runtime/library.h"
#include "codecs/blosc.h"
#include "kernels/device_codecs.h"
#include "kernels/gpu_codecs.h"
#include "kernels/thread_copy_engine.h"

namespace py = pybind11;

namespace tfswap {
namespace {

// Blocks, and threads per block.
using Launch = std::pair<int, int>;

CodecLaunch LaunchOf(const Launch& launch) { return {launch.first, launch.second}; }

template <typename T>
T* Pointer(uintptr_t address) {
  return reinterpret_cast<T*>(address);
}

void SampleCodecs(const std::vector<std::string>& names) {
  std::vector<Codec> codecs;
  for (const std::string& name : names) {
    const std::optional<Codec> codec = ParseCodec(name);
    if (codec) codecs.push_back(*codec);
  }
  for (CopyEngine* engine : GpuEngines()) engine->SampleCodecs(codecs);
  ThreadCopyEngine::sampler()->SetCodecs(std::move(codecs));
}

std::vector<CodecSample> CodecSamples() {
  std::vector<CodecSample> samples = ThreadCopyEngine::sampler()->Samples();
  for (CopyEngine* engine : GpuEngines()) {
    for (CodecSample& sample : engine->CodecSamples()) samples.push_back(std::move(sample));
  }
  return samples;
}

void SetLossyRate(std::optional<int> percent) {
  ThreadCopyEngine::far()->SetLossyRate(percent.value_or(0));
  ThreadCopyEngine::loss_meter()->Reset();
}

// Return the codecs that run on the device; null for a CPU.
DeviceCodecs* CodecsOrNull(int device) { return EngineOf(device)->codecs(); }

std::string CodecProblem(int device) {
  DeviceCodecs* codecs = CodecsOrNull(device);
  return codecs == nullptr ? "tfswap: a CPU has no codecs of its own" : codecs->Problem();
}

// Return the codecs that run on the device. Throws LibraryError if there are none.
DeviceCodecs* CodecsOf(int device) {
  ThrowUnlessEmpty(CodecProblem(device));
  return CodecsOrNull(device);
}

Text CodecDevice(int device) {
  DeviceCodecs* codecs = CodecsOrNull(device);
  return {codecs == nullptr ? "" : codecs->DeviceName()};
}

int CodecProcessors(int device) {
  DeviceCodecs* codecs = CodecsOrNull(device);
  return codecs == nullptr ? 0 : codecs->Processors();
}

Text UseCodec(int device, const std::string& codec, const Path& path, int64_t workspace_bytes) {
  const std::string problem = CodecProblem(device);
  if (!problem.empty()) return {problem};
  return {MessageOf(CodecsOf(device)->Use(codec, path.name, workspace_bytes))};
}

void ReleaseCodecs(int device) {
  if (DeviceCodecs* codecs = CodecsOrNull(device)) codecs->Release();
}

Text TakeCodecFault(int device, bool wait) {
  DeviceCodecs* codecs = CodecsOrNull(device);
  return {codecs == nullptr ? "" : MessageOf(codecs->TakeFault(wait))};
}

void SetCodecLaunch(int device, const std::string& codec, const Launch& launch) {
  ThrowUnlessEmpty(MessageOf(CodecsOf(device)->SetLaunch(codec, LaunchOf(launch))));
}

std::tuple<int64_t, double, double> MeasureDeviceCodec(int device, const std::string& codec,
                                                       const py::array& data, const Launch& launch,
                                                       int repeats) {
  const py::array tensor = py::array::ensure(data, py::array::c_style);
  const void* const bytes = tensor.data();
  const auto size_bytes = static_cast<int64_t>(tensor.nbytes());
  const auto element_bytes = static_cast<int>(tensor.itemsize());
  py::gil_scoped_release without_gil;
  const absl::StatusOr<CodecTimes> times =
      CodecsOf(device)->Measure(codec, element_bytes, bytes, size_bytes, LaunchOf(launch), repeats);
  ThrowUnlessEmpty(MessageOf(times.status()));
  return {times->far_bytes, static_cast<double>(times->encode_ns) / 1e9,
          static_cast<double>(times->decode_ns) / 1e9};
}

std::unique_ptr<GpuCodecs> OpenGpuCodecs(uintptr_t stream, const std::optional<Path>& folder) {
  const MakeGpuCodecs make = RegisteredGpuCodecs();
  if (make == nullptr) {
    throw LibraryError(
        "codecs on the GPU are not available: tfswap was built against a TensorFlow without GPU "
        "devices.");
  }
  auto codecs = make(Pointer<void>(stream), folder.value_or(Path()).name);
  ThrowUnlessEmpty(MessageOf(codecs.status()));
  return *std::move(codecs);
}

void BindGpuCodecs(py::module_* module) {
  const auto codec = py::arg("codec");
  const auto element_bytes = py::arg("element_bytes");
  const auto size_bytes = py::arg("size_bytes");
  const auto far_block = py::arg("far_block");
  const auto stream = py::arg("stream");
  const auto launch = py::arg("launch") = Launch(CodecLaunch().blocks, CodecLaunch().threads);
  using WithoutGil = py::call_guard<py::gil_scoped_release>;
  py::class_<GpuCodecs>(*module, "GpuCodecs")
      .def(
          "use_nvcomp",
          [](GpuCodecs& codecs, const std::string& codec, const Path& path, uintptr_t workspace,
             int64_t size_bytes, uintptr_t fault, uintptr_t stream) {
            ThrowUnlessEmpty(
                MessageOf(codecs.UseNvcomp(codec, path.name, Pointer<void>(workspace), size_bytes,
                                           Pointer<uint64_t>(fault), Pointer<void>(stream))));
          },
          codec, py::arg("path"), py::arg("workspace"), size_bytes, py::arg("fault"), stream,
          WithoutGil())
      .def(
          "check_decoded",
          [](GpuCodecs& codecs) { ThrowUnlessEmpty(MessageOf(codecs.TakeFault())); }, WithoutGil())
      .def("max_bytes", &GpuCodecs::MaxBytes, size_bytes)
      .def(
          "encoded_bytes",
          [](const GpuCodecs& codecs, uintptr_t far_block) {
            return codecs.EncodedBytes(Pointer<void>(far_block));
          },
          far_block)
      .def(
          "zero_elements",
          [](const GpuCodecs& codecs, uintptr_t far_block) {
            return codecs.ZeroElements(Pointer<void>(far_block));
          },
          far_block)
      .def(
          "encode",
          [](GpuCodecs& codecs, const std::string& codec, int element_bytes, uintptr_t source,
             int64_t size_bytes, uintptr_t far_block, uintptr_t stream, const Launch& launch) {
            ThrowUnlessEmpty(MessageOf(codecs.Encode(codec, element_bytes, Pointer<void>(source),
                                                     size_bytes, Pointer<void>(far_block),
                                                     Pointer<void>(stream), LaunchOf(launch))));
          },
          codec, element_bytes, py::arg("source"), size_bytes, far_block, stream, launch,
          WithoutGil())
      .def(
          "decode",
          [](GpuCodecs& codecs, const std::string& codec, int element_bytes, uintptr_t target,
             int64_t size_bytes, uintptr_t far_block, uintptr_t stream, const Launch& launch) {
            ThrowUnlessEmpty(MessageOf(codecs.Decode(codec, element_bytes, Pointer<void>(target),
                                                     size_bytes, Pointer<void>(far_block),
                                                     Pointer<void>(stream), LaunchOf(launch))));
          },
          codec, element_bytes, py::arg("target"), size_bytes, far_block, stream, launch,
          WithoutGil())
      .def(
          "count_zeros",
          [](GpuCodecs& codecs, int element_bytes, uintptr_t source, int64_t size_bytes, int every,
             uintptr_t count, uintptr_t stream, const Launch& launch) {
            ThrowUnlessEmpty(MessageOf(codecs.CountZeros(element_bytes, Pointer<void>(source),
                                                         size_bytes, every, Pointer<void>(count),
                                                         Pointer<void>(stream), LaunchOf(launch))));
          },
          element_bytes, py::arg("source"), size_bytes, py::arg("every"), py::arg("count"), stream,
          launch, WithoutGil());
}

}  // namespace

void BindCodecs(py::module_* module, Methods* methods) {
  py::class_<CodecSample>(*module, "CodecSample")
      .def_readonly("label", &CodecSample::label)
      .def_readonly("different_words", &CodecSample::different_words)
      .def_readonly("ratios", &CodecSample::ratios);
  py::class_<Loss>(*module, "Loss")
      .def_readonly("label", &Loss::label)
      .def_readonly("relative_error", &Loss::relative_error)
      .def_readonly("largest_error", &Loss::largest_error);
  BindGpuCodecs(module);
  const auto device = py::arg("device");
  const auto codec = py::arg("codec");
  const auto launch = py::arg("launch");
  methods
      ->Def(
          "load_blosc", [](const Path& path) { return Text{LoadBlosc(path.name)}; },
          py::arg("path"))
      .Def("sample_codecs", &SampleCodecs, py::arg("codecs"))
      .Def("codec_samples", &CodecSamples)
      .Def("set_lossy_rate", &SetLossyRate, py::arg("percent"))
      .Def("losses", [] { return ThreadCopyEngine::loss_meter()->Losses(); })
      .Def(
          "codec_problem", [](int device) { return Text{CodecProblem(device)}; }, device)
      .Def("codec_device", &CodecDevice, device)
      .Def("codec_processors", &CodecProcessors, device)
      .Def("use_codec", &UseCodec, device, codec, py::arg("path"), py::arg("workspace_bytes"))
      .Def("release_codecs", &ReleaseCodecs, device)
      .Def("take_codec_fault", &TakeCodecFault, device, py::arg("wait") = false)
      .Def("set_codec_launch", &SetCodecLaunch, device, codec, launch)
      .DefLocked("measure_device_codec", &MeasureDeviceCodec, device, codec, py::arg("data"),
                 launch, py::arg("repeats") = 1)
      .Def("gpu_codecs", &OpenGpuCodecs, py::arg("stream"), py::arg("folder") = py::none());
}

}  // namespace tfswap
