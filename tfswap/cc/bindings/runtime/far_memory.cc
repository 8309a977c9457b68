// Bindings for far memory: its limit, the file, the link, and streamed variables.

#include <malloc.h>

#include <map>
#include <optional>

#include "bindings/runtime/library.h"
#include "far/far_file.h"
#include "kernels/thread_copy_engine.h"

namespace py = pybind11;

namespace tfswap {
namespace {

// Return the host memory pool that all CPUs share, then the pool of each GPU.
std::vector<HostPool*> HostMemories() {
  std::vector<HostPool*> pools = {ThreadCopyEngine::far()->host()};
  for (CopyEngine* engine : GpuEngines()) pools.push_back(engine->host_memory());
  return pools;
}

// Limit the host memory of all CPUs together, and that of all GPUs, each of which gets an equal
// part.
void SetHostLimit(std::optional<int64_t> bytes) {
  const std::vector<HostPool*> pools = HostMemories();
  const auto gpus = static_cast<int64_t>(pools.size()) - 1;
  pools[0]->SetLimit(bytes.value_or(0));
  for (size_t i = 1; i < pools.size(); ++i) pools[i]->SetLimit(bytes.value_or(0) / gpus);
}

void PrepareHostMemory(int device, const std::vector<int64_t>& sizes) {
  EngineOf(device)->host_memory()->Prepare(sizes);
}

void TrimHost() {
  for (HostPool* pool : HostMemories()) pool->Trim();
}

void OpenFile(const std::optional<Path>& folder, std::optional<int64_t> limit_bytes) {
  const std::vector<CopyEngine*> engines = GpuEngines();
  std::string problem;
  if (folder.has_value() && !folder->name.empty()) {
    problem = FarFile::Get()->Open(folder->name, limit_bytes.value_or(0));
    for (CopyEngine* engine : engines) {
      if (problem.empty()) problem = engine->PrepareForFile();
    }
    if (problem.empty()) return;
  }
  FarFile::Get()->Close();
  for (CopyEngine* engine : engines) engine->ReleaseFromFile();
  ThrowUnlessEmpty(problem);
}

// Return a number for _VariableInCheckpoint; 0 if the value there does not begin with the known
// bytes.
int64_t FindInCheckpoint(const Path& path, int64_t offset, int64_t size_bytes, uintptr_t known,
                         int64_t known_bytes) {
  auto value = CheckpointValue::Find(path.name, offset, size_bytes,
                                     reinterpret_cast<const char*>(known), known_bytes);
  return value == nullptr ? 0 : CheckpointValue::Keep(std::move(value));
}

void EmulateLink(int device, std::optional<double> bytes_per_s, int64_t latency_ns) {
  EngineOf(device)->EmulateLink(bytes_per_s.value_or(0), latency_ns);
}

std::map<std::string, double> MeasureLink(int device, int64_t block_bytes, int blocks) {
  const absl::StatusOr<LinkTimes> link = EngineOf(device)->MeasureLink(block_bytes, blocks);
  ThrowUnlessEmpty(MessageOf(link.status()));
  const auto speed = [bytes = link->bytes](int64_t ns) {
    return static_cast<double>(bytes) * 1e9 / static_cast<double>(std::max<int64_t>(ns, 1));
  };
  return {{"out_bytes_per_s", speed(link->out_ns)},
          {"in_bytes_per_s", speed(link->in_ns)},
          {"both_out_bytes_per_s", speed(link->both_out_ns)},
          {"both_in_bytes_per_s", speed(link->both_in_ns)}};
}

}  // namespace

void BindFarMemory(Methods* methods) {
  const auto device = py::arg("device");
  methods->Def("set_host_limit", &SetHostLimit, py::arg("limit_bytes"))
      .Def("prepare_host_memory", &PrepareHostMemory, device, py::arg("sizes"))
      .Def("trim_host", &TrimHost)
      .Def("trim_malloc", [] { malloc_trim(0); })
      .Def("open_file", &OpenFile, py::arg("folder"), py::arg("limit_bytes") = py::none())
      .Def(
          "shares_disk_with_spill_file",
          [](const Path& path) { return FarFile::Get()->SharesDiskWith(path.name); },
          py::arg("path"))
      .Def("find_in_checkpoint", &FindInCheckpoint, py::arg("path"), py::arg("offset"),
           py::arg("size_bytes"), py::arg("known"), py::arg("known_bytes"))
      .Def(
          "defer_placing", [](bool defers) { StreamedVariables::defers_placing = defers; },
          py::arg("defers"))
      .Def("file_problem", [] { return Text{FarFile::Get()->Problem()}; })
      .Def("emulate_link", &EmulateLink, device, py::arg("bytes_per_s"), py::arg("latency_ns") = 0)
      .Def("measure_link", &MeasureLink, device, py::arg("block_bytes"), py::arg("blocks"))
      .Def(
          "stream_variables",
          [](int device, bool on) { return Text{EngineOf(device)->variables()->SetOn(on)}; },
          device, py::arg("on"))
      .Def(
          "streams_variables", [](int device) { return EngineOf(device)->variables()->on(); },
          device)
      .Def(
          "set_verify", [](int device, bool verify) { EngineOf(device)->SetVerify(verify); },
          device, py::arg("verify"));
}

}  // namespace tfswap
