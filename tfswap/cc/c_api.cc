// The face of libtfswap to Python (tfswap/ops/loaded_library.py, by ctypes). Strings that are
// returned belong to the caller and go back through tfswap_free; everything is plain data.

#include <malloc.h>

#include <cstdlib>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "codecs/blosc.h"
#include "core/util/c_text.h"
#include "core/util/faults.h"
#include "device/device_table.h"
#include "far/far_file.h"
#include "grappler/index/op_costs.h"
#include "grappler/pass_log.h"
#include "kernels/thread_copy_engine.h"

namespace {

using ::tfswap::AllocatorOf;
using ::tfswap::BfcStats;
using ::tfswap::BudgetStats;
using ::tfswap::Copied;
using ::tfswap::CopyEngine;
using ::tfswap::CopyStats;
using ::tfswap::DeviceAllocator;
using ::tfswap::FarFile;
using ::tfswap::FarStats;
using ::tfswap::FarTierStats;
using ::tfswap::HostPool;
using ::tfswap::HostPoolStats;
using ::tfswap::Numbers;
using ::tfswap::SlabAllocatorStats;
using ::tfswap::ThreadCopyEngine;

std::string Quoted(const std::string& text) {
  std::string quoted = "\"";
  for (char c : text) {
    if (c == '"' || c == '\\') quoted += '\\';
    quoted += c == '\n' || c == '\t' ? ' ' : c;
  }
  return quoted + '"';
}

std::string Listed(const std::vector<tfswap::SectionFloor>& floors) {
  std::string text = "[";
  for (const tfswap::SectionFloor& each : floors) {
    if (text.size() > 1) text += ", ";
    text += "{\"sections\": " + std::to_string(each.sections) +
            ", \"bytes\": " + std::to_string(each.floor.bytes) +
            ", \"op\": " + Quoted(each.floor.op) + "}";
  }
  return text + "]";
}

std::vector<CopyEngine*> GpuEngines() {
  std::vector<CopyEngine*> engines;
  for (int i = 0; i < tfswap::GpuCount(); ++i) {
    DeviceAllocator* allocator = AllocatorOf(tfswap::kFirstGpu + i);
    CopyEngine* engine = allocator == nullptr ? nullptr : CopyEngine::For(allocator);
    if (engine != nullptr) engines.push_back(engine);
  }
  return engines;
}

// Host memory behind the CPUs, which share theirs, and of each GPU.
std::vector<HostPool*> HostMemories() {
  std::vector<HostPool*> pools = {ThreadCopyEngine::far()->host()};
  for (CopyEngine* engine : GpuEngines()) pools.push_back(engine->host_memory());
  return pools;
}

void AddFarStats(CopyEngine* engine, Numbers* numbers) {
  const FarStats stats = engine->FarUse();
  for (int i = 0; i < tfswap::kFarTiers; ++i) {
    const FarTierStats& tier = stats.tiers[i];
    const std::string name = std::string("far_") + FarTierName(static_cast<tfswap::FarTier>(i));
    numbers->Add(name + "_bytes_out", tier.bytes_out)
        .Add(name + "_kept_bytes_out", tier.far_bytes_out)
        .Add(name + "_copies_out", tier.copies_out)
        .Add(name + "_bytes_in", tier.bytes_in)
        .Add(name + "_busy_out_ns", tier.busy_out_ns)
        .Add(name + "_busy_in_ns", tier.busy_in_ns)
        .Add(name + "_bytes_in_use", tier.bytes_in_use)
        .Add(name + "_peak_bytes", tier.peak_bytes);
  }
  const tfswap::SpillStats file = FarFile::Get()->Stats();
  numbers->Add("file_bytes", file.file_bytes)
      .Add("file_limit_bytes", file.limit_bytes)
      .Add("far_moved_on", stats.moved_on)
      .Add("file_errors", stats.io_errors);
}

}  // namespace

extern "C" {

void tfswap_free(void* text) { std::free(text); }

// Whether there is such a device, and it has run something.
int tfswap_has_device(int device) {
  DeviceAllocator* allocator = AllocatorOf(device);
  return allocator != nullptr && CopyEngine::For(allocator) != nullptr;
}

// Devices of ours that TensorFlow has made so far, and the highest numbers of CPUs and of GPUs at
// once. Elsewhere `device` is n for CPU:n, and 1000 + n for GPU:n, which must be there.
int tfswap_devices_made() { return tfswap::DevicesMade(); }
int tfswap_device_count() { return tfswap::CpuCount(); }
int tfswap_gpu_count() { return tfswap::GpuCount(); }

void tfswap_set_budget(int device, int64_t bytes) {
  AllocatorOf(device)->budget()->SetBudget(bytes);
}

// Below 0: no limit. Of no effect on a CPU.
void tfswap_set_workspace_limit(int device, int64_t bytes) {
  if (auto* workspaces = AllocatorOf(device)->workspaces()) workspaces->SetLimit(bytes);
}

// Of the CPUs, which share their far memory, or of all GPUs, each of which gets an equal part.
void tfswap_set_host_limit(int64_t bytes) {
  const std::vector<HostPool*> pools = HostMemories();
  const auto gpus = static_cast<int64_t>(pools.size()) - 1;
  pools[0]->SetLimit(bytes);
  for (size_t i = 1; i < pools.size(); ++i) pools[i]->SetLimit(bytes / gpus);
}

// Codecs of c-blosc2, from its library. Answers "" or why not.
char* tfswap_load_blosc(const char* path) { return Copied(tfswap::LoadBlosc(path)); }

// Has what is swapped out sampled, by codecs with commas between them; "" ends that.
void tfswap_sample_codecs(const char* codecs) {
  std::vector<tfswap::Codec> parsed;
  for (const absl::string_view name : absl::StrSplit(codecs, ',', absl::SkipEmpty())) {
    const std::optional<tfswap::Codec> codec = tfswap::ParseCodec(std::string(name));
    if (codec) parsed.push_back(*codec);
  }
  for (CopyEngine* engine : GpuEngines()) engine->SampleCodecs(parsed);
  ThreadCopyEngine::sampler()->SetCodecs(std::move(parsed));
}

// What was found (far/ratio_sampler.h).
char* tfswap_codec_samples() {
  std::string text = ThreadCopyEngine::sampler()->Text();
  for (CopyEngine* engine : GpuEngines()) text += engine->CodecSamples();
  return Copied(text);
}

// How much a lossy codec may keep of a tensor at most, in percent; 0, as it is at first: there is
// no leave to use one. What the meter found before is forgotten.
void tfswap_set_lossy_rate(int percent) {
  ThreadCopyEngine::far()->SetLossyRate(percent);
  ThreadCopyEngine::loss_meter()->Reset();
}

// What lossy codecs changed since (far/loss_meter.h).
char* tfswap_losses() { return Copied(ThreadCopyEngine::loss_meter()->Text()); }

// What malloc keeps for later goes back to the system.
void tfswap_trim_malloc() { malloc_trim(0); }

void tfswap_trim_host() {
  for (HostPool* pool : HostMemories()) pool->Trim();
}

// The file tier of all devices' far memory, in `folder`; "" takes it away. Answers "" or what is
// wrong; then there is none.
char* tfswap_open_file(const char* folder, int64_t limit_bytes) {
  const std::vector<CopyEngine*> engines = GpuEngines();
  std::string problem;
  if (*folder != '\0') {
    problem = FarFile::Get()->Open(folder, limit_bytes);
    for (CopyEngine* engine : engines) {
      if (problem.empty()) problem = engine->PrepareForFile();
    }
    if (problem.empty()) return Copied("");
  }
  FarFile::Get()->Close();
  for (CopyEngine* engine : engines) engine->ReleaseFromFile();
  return Copied(problem);
}

// What the file said when it failed last, or "".
char* tfswap_file_problem() { return Copied(FarFile::Get()->Problem()); }

void tfswap_emulate_link(int device, double bytes_per_s, int64_t latency_ns) {
  CopyEngine::For(AllocatorOf(device))->EmulateLink(bytes_per_s, latency_ns);
}

// "" or what went wrong; `times`: as LinkTimes.
char* tfswap_measure_link(int device, int64_t block_bytes, int copies, int64_t* times) {
  const absl::StatusOr<tfswap::LinkTimes> link =
      CopyEngine::For(AllocatorOf(device))->MeasureLink(block_bytes, copies);
  if (!link.ok()) return Copied(std::string(link.status().message()));
  for (const int64_t each :
       {link->bytes, link->out_ns, link->in_ns, link->both_out_ns, link->both_in_ns}) {
    *times++ = each;
  }
  return Copied("");
}

void tfswap_set_verify(int device, int verify) {
  CopyEngine::For(AllocatorOf(device))->SetVerify(verify != 0);
}

void tfswap_make_room(int device) { AllocatorOf(device)->budget()->MakeRoom(); }

char* tfswap_stream_variables(int device, int on) {
  return Copied(CopyEngine::For(AllocatorOf(device))->variables()->SetOn(on != 0));
}

// For tests (core/util/faults.h). Answers "" or what is wrong.
char* tfswap_set_faults(const char* text) { return Copied(tfswap::Faults::Get()->Set(text)); }
char* tfswap_fault_counts() { return Copied(tfswap::Faults::Get()->Counts()); }

char* tfswap_memory_stats(int device) {
  DeviceAllocator* allocator = AllocatorOf(device);
  const BudgetStats budget = allocator->budget()->Stats();
  const tensorflow::AllocatorStats load = *allocator->GetStats();
  const SlabAllocatorStats slab = allocator->slab()->Stats();
  const BfcStats bfc = allocator->bfc() == nullptr ? BfcStats() : allocator->bfc()->Stats();
  const CopyStats copies = CopyEngine::For(allocator)->Stats();
  Numbers numbers;
  AddFarStats(CopyEngine::For(allocator), &numbers);
  // What encoded buffers became is known by now, and no memory awaits it any more.
  const HostPoolStats host = CopyEngine::For(allocator)->host_memory()->Stats();
  return Copied(numbers.Add("budget_bytes", budget.budget_bytes)
                    .Add("memory_bytes", allocator->memory_bytes())
                    .Add("bytes_in_use", budget.bytes_in_use)
                    .Add("peak_bytes", budget.peak_bytes)
                    .Add("window_peak_bytes", budget.window_peak_bytes)
                    .Add("load_bytes", load.bytes_in_use)
                    .Add("peak_load_bytes", load.peak_bytes_in_use)
                    .Add("window_peak_load_bytes", allocator->window_peak_bytes())
                    .Add("largest_request_bytes", load.largest_alloc_size)
                    .Add("allocations", load.num_allocs)
                    .Add("waits", budget.waits)
                    .Add("wait_ns", budget.wait_ns)
                    .Add("failures", budget.failures)
                    .Add("slab_limit_bytes", slab.slab.limit_bytes)
                    .Add("slab_bytes", slab.slab.committed_bytes)
                    .Add("slab_claimed_bytes", slab.slab.claimed_bytes)
                    .Add("slab_hits", slab.hits)
                    .Add("slab_hit_bytes", slab.hit_bytes)
                    .Add("slab_moved", slab.moved)
                    .Add("slab_moved_bytes", slab.moved_bytes)
                    .Add("slab_unplanned", slab.unplanned)
                    .Add("slab_other_size", slab.other_size)
                    .Add("slab_taken", slab.taken)
                    .Add("slab_no_room", slab.no_room)
                    .Add("slab_missed", slab.missed)
                    .Add("slab_missed_bytes", slab.missed_bytes)
                    .Add("slab_lasting", slab.lasting)
                    .Add("slab_lasting_bytes", slab.lasting_bytes)
                    .Add("slab_faults", slab.faults)
                    .Add("bfc_arena_bytes", bfc.arena_bytes)
                    .Add("bfc_bytes_in_use", bfc.bytes_in_use)
                    .Add("bfc_high_water_bytes", bfc.high_water_bytes)
                    .Add("bfc_largest_free_bytes", bfc.largest_free_bytes)
                    .Add("bytes_out", copies.bytes_out)
                    .Add("bytes_in", copies.bytes_in)
                    .Add("copies_out", copies.copies_out)
                    .Add("copies_in", copies.copies_in)
                    .Add("copies_declined", copies.copies_declined)
                    .Add("far_buffers", copies.buffers_alive)
                    .Add("busy_out_ns", copies.busy_out_ns)
                    .Add("busy_in_ns", copies.busy_in_ns)
                    .Add("host_bytes_in_use", host.bytes_in_use)
                    .Add("host_peak_bytes", host.peak_bytes_in_use)
                    .Add("host_bytes_cached", host.bytes_cached)
                    .Add("host_limit_bytes", host.limit_bytes)
                    .Text());
}

// What is asked for at the begin and the end of each step; the order is library.py's.
void tfswap_step_counts(int device, int64_t* counts) {
  DeviceAllocator* allocator = AllocatorOf(device);
  const BudgetStats budget = allocator->budget()->Stats();
  const SlabAllocatorStats slab = allocator->slab()->Counts();
  CopyEngine* engine = CopyEngine::For(allocator);
  const CopyStats copies = engine->Stats();
  for (const int64_t count :
       {budget.budget_bytes, budget.bytes_in_use, budget.window_peak_bytes,
        allocator->GetStats()->bytes_in_use, allocator->window_peak_bytes(),
        budget.window_lack_bytes, budget.waits, copies.bytes_out, copies.bytes_in,
        engine->host_memory()->Stats().peak_bytes_in_use, slab.slab.limit_bytes, slab.hit_bytes,
        slab.moved_bytes, slab.missed_bytes, slab.lasting_bytes}) {
    *counts++ = count;
  }
}

void tfswap_reset_memory_stats(int device) {
  AllocatorOf(device)->ClearStats();
  AllocatorOf(device)->slab()->ResetCounts();
  CopyEngine::For(AllocatorOf(device))->ClearStats();
  CopyEngine::For(AllocatorOf(device))->ResetFarUse();
}

void tfswap_restart_window(int device) { AllocatorOf(device)->RestartWindow(); }

// What slots are multiples of.
int64_t tfswap_granule_bytes() { return tfswap::Slab::kGranuleBytes; }

// Planned addresses of a graph's buffers (allocator/slab_layouts.h). Answers "" or why not.
char* tfswap_install_layout(int device, const char* graph, const char* text) {
  const absl::Status status = AllocatorOf(device)->slab()->Install(graph, text);
  return Copied(status.ok() ? "" : std::string(status.message()));
}

void tfswap_remove_layout(int device, const char* graph) {
  AllocatorOf(device)->slab()->Remove(graph);
}

void tfswap_clear_layouts(int device) { AllocatorOf(device)->slab()->Clear(); }

// Answers "" or why not.
char* tfswap_always_slab(int device, int always) {
  const absl::Status status = AllocatorOf(device)->slab()->SetAlways(always != 0);
  return Copied(status.ok() ? "" : std::string(status.message()));
}

void tfswap_check_slab(int device, int check) { AllocatorOf(device)->slab()->SetCheck(check != 0); }

void tfswap_open_bfc(int device, int64_t bytes) { AllocatorOf(device)->bfc()->Open(bytes); }

void tfswap_start_recording(int device, int host_times) {
  AllocatorOf(device)->StartRecording(host_times != 0);
}

// The recorded trace (core/simulate/trace.h) in a buffer of `*bytes` bytes.
char* tfswap_stop_recording(int device, int64_t* bytes) {
  const std::string trace = AllocatorOf(device)->recording()->StopRecording().Serialize();
  *bytes = static_cast<int64_t>(trace.size());
  return Copied(trace);
}

char* tfswap_pass_records() {
  std::string text = "[";
  for (const tfswap::PassRecord& record : tfswap::PassRecords()) {
    if (text.size() > 1) text += ", ";
    text += "{\"function\": " + Quoted(record.function) +
            ", \"fingerprint\": " + Quoted(record.fingerprint) +
            ", \"portable\": " + Quoted(record.portable) + ", \"label\": " + Quoted(record.label) +
            ", \"outcome\": " + Quoted(record.outcome) + ", \"reason\": " + Quoted(record.reason) +
            ", \"nodes\": " + std::to_string(record.nodes) +
            ", \"swaps\": " + std::to_string(record.swaps) +
            ", \"sectioned_ops\": " + std::to_string(record.sectioned_ops) +
            ", \"sections\": " + std::to_string(record.sections) +
            ", \"examples\": " + std::to_string(record.examples) +
            ", \"floors\": " + Listed(record.floors) +
            ", \"serial\": " + std::to_string(record.serial) + "}";
  }
  return Copied(text + "]");
}

char* tfswap_describe(const char* fingerprint) {
  return Copied(tfswap::DescriptionOf(fingerprint));
}

char* tfswap_describe_under_plan(const char* fingerprint, const char* label) {
  return Copied(tfswap::DescriptionUnderPlan(fingerprint, label));
}

void tfswap_clear_pass_records() { tfswap::ClearPassRecords(); }

// Costs of a training step's graph (grappler/index/op_costs.h), or a line that begins with
// "#error". `kept`: names of ops, one a line.
char* tfswap_estimate_step(const char* graph, int64_t graph_bytes, const char* kept,
                           double ops_per_s, double product_ops_per_s, double bytes_per_s) {
  tensorflow::GraphDef parsed;
  if (!parsed.ParseFromArray(graph, static_cast<int>(graph_bytes))) {
    return Copied("#error\tthe graph is not a GraphDef");
  }
  const absl::StatusOr<std::string> text =
      tfswap::EstimateStep(std::move(parsed), absl::StrSplit(kept, '\n', absl::SkipEmpty()),
                           tfswap::DeviceSpeed{ops_per_s, product_ops_per_s, bytes_per_s});
  return Copied(text.ok() ? *text : "#error\t" + text.status().ToString());
}

}  // extern "C"
