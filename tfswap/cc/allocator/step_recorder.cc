#include "allocator/step_recorder.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <thread>
#include <tuple>
#include <unordered_map>

#include "allocator/variable_inputs.h"
#include "core/gpu/gpu_step.h"
#include "core/util/graph_mark.h"
#include "core/util/now.h"
#include "tensorflow/core/common_runtime/dma_helper.h"
#include "tensorflow/core/framework/node_def.pb.h"

namespace tfswap {

using ::tensorflow::OpKernel;
using ::tensorflow::OpKernelContext;
using ::tensorflow::Tensor;

namespace {

// Return the address of the tensor's allocation, which slices and reshapes share; null if it has
// none.
const void* RootOf(const Tensor& tensor) {
  const auto* buffer = tensorflow::DMAHelper::buffer(&tensor);
  if (buffer == nullptr) return nullptr;
  return const_cast<tensorflow::TensorBuffer*>(buffer)->root_buffer()->data();
}

struct Value {
  int input;
  const void* root;
};

// Return the values of the variables that a kernel uses. Do not call this with a lock held: a
// thread that changes a variable holds the variable's lock and may free memory, which takes our
// locks.
std::vector<Value> ValuesOf(const OpKernel& kernel, OpKernelContext* context) {
  std::vector<Value> values;
  if (!UsesVariables(kernel, context)) return values;
  for (const VariableInput& each : VariableInputs(context)) {
    tensorflow::tf_shared_lock reading(*each.var->mu());
    const void* root = RootOf(*each.var->tensor());
    if (root != nullptr) values.push_back({each.input, root});
  }
  return values;
}

}  // namespace

BufferKind KindOfRegion(absl::string_view region_type) {
  if (region_type == "output") return BufferKind::kOutput;
  if (region_type == "temp") return BufferKind::kTemp;
  return BufferKind::kOther;
}

struct StepRecorder::Shard {
  // A piece of a shard's text.
  struct Text {
    size_t offset = 0;
    size_t size = 0;
  };

  struct RawOp {
    OpRecord record;
    Text name;
    Text type;
    Text graph;
    int32_t begin_mark = -1;
    int32_t end_mark = -1;
  };

  struct RawBuffer {
    BufferRecord record;
    Text name;
    const void* ptr;
  };

  struct RawFree {
    const void* ptr;
    int64_t ns;
  };

  struct RawElement {
    int64_t ns;
    int64_t element;
    ElementEvent event;
    const void* ptr;
  };

  struct RawAccess {
    size_t op;
    int32_t port;
    const void* ptr;
    int32_t of_variable = 0;
  };

  const std::thread::id thread = std::this_thread::get_id();
  std::mutex mu;  // contended only if an op ends on another thread, and by Stop()
  int64_t recording = 0;
  std::string text;
  std::vector<RawOp> ops;
  std::vector<RawBuffer> buffers;
  std::vector<RawFree> frees;
  std::vector<RawAccess> accesses;
  std::vector<RawElement> elements;

  Text Add(absl::string_view name) {
    const size_t offset = text.size();
    text.append(name.data(), name.size());
    return {offset, name.size()};
  }
  std::string_view At(const Text& piece) const {
    return std::string_view(text).substr(piece.offset, piece.size);
  }
  void Clear(int64_t next_recording) {
    recording = next_recording;
    text = {};
    ops = {};
    buffers = {};
    frees = {};
    accesses = {};
    elements = {};
  }
};

StepRecorder::StepRecorder() = default;
StepRecorder::~StepRecorder() = default;

StepRecorder::Shard* StepRecorder::ThisThreads() {
  thread_local const StepRecorder* owner = nullptr;
  thread_local Shard* shard = nullptr;
  if (owner == this) return shard;
  std::lock_guard<std::mutex> lock(mu_);
  auto it = std::find_if(shards_.begin(), shards_.end(), [](const auto& known) {
    return known->thread == std::this_thread::get_id();
  });
  if (it == shards_.end()) {
    shards_.push_back(std::make_unique<Shard>());
    shards_.back()->recording = recording_;
    it = std::prev(shards_.end());
  }
  owner = this;
  return shard = it->get();
}

void StepRecorder::StartClock() {
  if (GpuClock* clock = clock_.load()) clock->Start();
}

void StepRecorder::Start(int64_t resident_bytes) {
  std::lock_guard<std::mutex> lock(mu_);
  ++recording_;
  for (const auto& shard : shards_) {
    std::lock_guard<std::mutex> shard_lock(shard->mu);
    shard->Clear(recording_);
  }
  start_ns_ = NowNs();
  resident_bytes_ = resident_bytes;
  on_.store(true);
}

void StepRecorder::Present(int64_t bytes, const std::string& op, BufferKind kind, const void* ptr) {
  AddBuffer(bytes, -1, op, kind, ptr);
}

void StepRecorder::Allocated(int64_t bytes, const std::string& op, BufferKind kind,
                             const void* ptr) {
  AddBuffer(bytes, NowNs(), op, kind, ptr);
}

void StepRecorder::AddBuffer(int64_t bytes, int64_t alloc_ns, const std::string& op,
                             BufferKind kind, const void* ptr) {
  Shard* shard = ThisThreads();
  std::lock_guard<std::mutex> lock(shard->mu);
  if (!on()) return;
  const BufferRecord record{bytes, alloc_ns, -1, 0, static_cast<int32_t>(kind)};
  shard->buffers.push_back({record, shard->Add(op), ptr});
}

void StepRecorder::Freed(const void* ptr) {
  Shard* shard = ThisThreads();
  std::lock_guard<std::mutex> lock(shard->mu);
  if (on()) shard->frees.push_back({ptr, NowNs()});
}

void StepRecorder::Element(int64_t element, ElementEvent event, const Tensor& tensor) {
  if (!on()) return;
  Shard* shard = ThisThreads();
  std::lock_guard<std::mutex> lock(shard->mu);
  if (on()) shard->elements.push_back({NowNs(), element, event, RootOf(tensor)});
}

StepRecorder::Op StepRecorder::OpBegins(const OpKernel& kernel, OpKernelContext* context) {
  const std::vector<Value> values = ValuesOf(kernel, context);
  Shard* shard = ThisThreads();
  std::lock_guard<std::mutex> lock(shard->mu);
  if (!on()) return {};
  const size_t op = shard->ops.size();
  OpRecord record{};
  record.step_id = context->step_id();
  record.frame = context->frame_iter().frame_id;
  record.iteration = context->frame_iter().iter_id;
  record.end_ns = -1;
  for (int i = 0; i < context->num_inputs(); ++i) {
    if (!context->has_input(i) || context->input_is_ref(i)) continue;
    const void* root = RootOf(context->input(i));
    if (root != nullptr) shard->accesses.push_back({op, i, root});
  }
  for (const Value& value : values) shard->accesses.push_back({op, value.input, value.root, 1});
  const Shard::Text name = shard->Add(kernel.name_view());
  const Shard::Text type = shard->Add(kernel.type_string_view());
  record.start_ns = NowNs();
  const auto& attributes = kernel.def().attr();
  const auto mark = attributes.find(kGraphAttribute);
  const Shard::Text graph = mark == attributes.end() ? Shard::Text{} : shard->Add(mark->second.s());
  GpuClock* clock = clock_.load();
  shard->ops.push_back({record, name, type, graph, clock == nullptr ? -1 : clock->Mark()});
  return {shard, op, shard->recording};
}

void StepRecorder::OpEnds(const Op& op, OpKernelContext* context, int64_t wait_ns) {
  const int64_t now = NowNs();
  const std::vector<Value> values = ValuesOf(context->op_kernel(), context);
  GpuClock* clock = clock_.load();
  const bool marked = clock != nullptr && op.shard->thread == std::this_thread::get_id();
  const int32_t end_mark = marked ? clock->Mark() : -1;
  std::lock_guard<std::mutex> lock(op.shard->mu);
  if (!on() || op.recording != op.shard->recording) return;
  op.shard->ops[op.index].end_mark = end_mark;
  OpRecord& record = op.shard->ops[op.index].record;
  record.end_ns = now;
  record.wait_ns = wait_ns;
  for (int i = 0; i < context->num_outputs(); ++i) {
    const Tensor* output = context->mutable_output(i);
    const void* root = output == nullptr ? nullptr : RootOf(*output);
    if (root != nullptr) op.shard->accesses.push_back({op.index, -1 - i, root});
  }
  for (const Value& value : values) {
    op.shard->accesses.push_back({op.index, -1 - value.input, value.root, 1});
  }
}

std::function<void()> StepRecorder::OpBeginsAsync(const OpKernel& kernel, OpKernelContext* context,
                                                  std::function<void()> done) {
  const Op op = OpBegins(kernel, context);
  if (!op) return done;
  return [this, op, context, done = std::move(done)] {
    OpEnds(op, context, 0);
    done();
  };
}

namespace {

// Finds the buffer that was at an address at a time.
class Residents {
 public:
  void Allocated(const void* ptr, int32_t buffer) { at_[ptr].buffers.push_back(buffer); }
  void Freed(const void* ptr, int64_t ns, int32_t thread) {
    at_[ptr].frees.push_back({ns, thread});
  }

  // Set when and by which thread each buffer was freed: by the first free after its allocation.
  void Settle(std::vector<BufferRecord>* buffers, std::vector<HostRecording::Buffer>* threads) {
    for (auto& [ptr, place] : at_) {
      std::sort(place.frees.begin(), place.frees.end());
      // Two threads may allocate and free the same address within one tick of the clock.
      std::stable_sort(place.buffers.begin(), place.buffers.end(), [&](int32_t a, int32_t b) {
        return (*buffers)[a].alloc_ns < (*buffers)[b].alloc_ns;
      });
      size_t next = 0;
      for (const int32_t b : place.buffers) {
        BufferRecord& buffer = (*buffers)[b];
        while (next < place.frees.size() && place.frees[next].first < buffer.alloc_ns) ++next;
        if (next >= place.frees.size()) continue;
        std::tie(buffer.free_ns, (*threads)[b].free_thread) = place.frees[next++];
      }
    }
  }

  // Return the buffer that was at `ptr` at that time; -1 if none is known.
  int32_t Find(const void* ptr, int64_t ns, const std::vector<BufferRecord>& buffers) const {
    auto it = at_.find(ptr);
    if (it == at_.end()) return -1;
    const std::vector<int32_t>& there = it->second.buffers;
    auto after = std::upper_bound(there.begin(), there.end(), ns, [&](int64_t value, int32_t b) {
      return value < buffers[b].alloc_ns;
    });
    if (after == there.begin()) return -1;
    const int32_t b = *std::prev(after);
    return buffers[b].free_ns < 0 || ns <= buffers[b].free_ns ? b : -1;
  }

 private:
  struct Place {
    std::vector<int32_t> buffers;
    std::vector<std::pair<int64_t, int32_t>> frees;  // when, and by which thread
  };
  std::unordered_map<const void*, Place> at_;
};

// Finds the buffers that hold the same element of a list, one after the other.
class Elements {
 public:
  void Add(const StepRecorder::Shard::RawElement& raw) { events_.push_back(raw); }

  // Let the first buffer of each element stay until the element ends, and its copies need nothing.
  void Settle(const Residents& residents, std::vector<BufferRecord>* buffers) {
    std::sort(events_.begin(), events_.end(),
              [](const auto& a, const auto& b) { return a.ns < b.ns; });
    std::unordered_map<int64_t, int32_t> first;  // by element, for those that left
    for (const StepRecorder::Shard::RawElement& raw : events_) {
      const auto known = first.find(raw.element);
      if (known == first.end()) {
        if (raw.event != StepRecorder::ElementEvent::kLeaves) continue;
        const int32_t left = residents.Find(raw.ptr, raw.ns, *buffers);
        if (left >= 0) first[raw.element] = FirstOf(left);
      } else if (raw.event == StepRecorder::ElementEvent::kEnds) {
        ends_.emplace_back(known->second, raw.ns);
      } else if (raw.event == StepRecorder::ElementEvent::kReturned) {
        const int32_t copy = residents.Find(raw.ptr, raw.ns, *buffers);
        if (copy >= 0 && copy != known->second) firsts_[copy] = known->second;
      }
    }
    const auto never = [](int64_t ns) { return ns < 0 ? std::numeric_limits<int64_t>::max() : ns; };
    const auto keep = [&](int32_t buffer, int64_t until_ns) {
      BufferRecord& record = (*buffers)[buffer];
      if (never(until_ns) > never(record.free_ns)) record.free_ns = until_ns;
    };
    for (const auto& [buffer, end_ns] : ends_) keep(buffer, end_ns);
    for (const auto& [copy, buffer] : firsts_) {
      keep(buffer, (*buffers)[copy].free_ns);
      (*buffers)[copy].bytes = 0;
    }
  }

  // Return the first buffer of the element that a buffer holds; the buffer itself if it is no copy.
  int32_t FirstOf(int32_t buffer) const {
    const auto known = firsts_.find(buffer);
    return known == firsts_.end() ? buffer : known->second;
  }

 private:
  std::vector<StepRecorder::Shard::RawElement> events_;
  std::unordered_map<int32_t, int32_t> firsts_;    // by copy
  std::vector<std::pair<int32_t, int64_t>> ends_;  // by first buffer: when an element ended
};

}  // namespace

StepTrace StepRecorder::Stop() {
  on_.store(false);
  GpuClock* clock = clock_.load();
  const GpuTimes gpu = clock == nullptr ? GpuTimes() : clock->Stop();
  std::lock_guard<std::mutex> lock(mu_);
  HostRecording host;
  StepTrace trace;
  trace.start_ns = start_ns_;
  trace.end_ns = NowNs();
  trace.resident_bytes = resident_bytes_;
  NameTable names(&trace.names);

  Residents residents;
  Elements elements;
  std::vector<std::pair<int64_t, std::pair<const Shard*, size_t>>> order;  // ops by start
  std::unordered_map<const Shard*, int32_t> threads;
  for (const auto& shard : shards_) {
    std::lock_guard<std::mutex> shard_lock(shard->mu);
    const auto thread = static_cast<int32_t>(threads.size());
    threads[shard.get()] = thread;
    for (const Shard::RawBuffer& raw : shard->buffers) {
      residents.Allocated(raw.ptr, static_cast<int32_t>(trace.buffers.size()));
      host.buffers.push_back({thread, -1});
      trace.buffers.push_back(raw.record);
      trace.buffers.back().name = names.Intern(shard->At(raw.name));
    }
    for (const Shard::RawFree& freed : shard->frees) {
      residents.Freed(freed.ptr, freed.ns, thread);
    }
    for (const Shard::RawElement& raw : shard->elements) elements.Add(raw);
    for (size_t op = 0; op < shard->ops.size(); ++op) {
      order.push_back({shard->ops[op].record.start_ns, {shard.get(), op}});
    }
  }
  residents.Settle(&trace.buffers, &host.buffers);

  std::stable_sort(order.begin(), order.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  std::unordered_map<const Shard*, std::vector<int32_t>> places;
  for (const auto& shard : shards_) places[shard.get()].resize(shard->ops.size());
  for (const auto& [start_ns, at] : order) {
    const auto& [shard, op] = at;
    places[shard][op] = static_cast<int32_t>(trace.ops.size());
    const Shard::RawOp& raw = shard->ops[op];
    const bool marked = raw.begin_mark >= 0 && raw.end_mark >= 0;
    host.ops.push_back({threads[shard], raw.begin_mark, marked ? raw.end_mark : -1});
    trace.ops.push_back(raw.record);
    trace.ops.back().name = names.Intern(shard->At(raw.name));
    trace.ops.back().type = names.Intern(shard->At(raw.type));
    trace.ops.back().graph = raw.graph.size == 0 ? -1 : names.Intern(shard->At(raw.graph));
  }
  for (const auto& shard : shards_) {
    for (const Shard::RawAccess& raw : shard->accesses) {
      const int32_t op = places[shard.get()][raw.op];
      const OpRecord& record = trace.ops[op];
      const int64_t ns = raw.port < 0 ? record.end_ns : record.start_ns;
      const int32_t buffer = residents.Find(raw.ptr, ns, trace.buffers);
      if (buffer < 0) continue;
      trace.accesses.push_back({op, raw.port, buffer, raw.of_variable});
    }
  }
  elements.Settle(residents, &trace.buffers);
  for (AccessRecord& access : trace.accesses) access.buffer = elements.FirstOf(access.buffer);
  std::stable_sort(trace.accesses.begin(), trace.accesses.end(),
                   [](const AccessRecord& a, const AccessRecord& b) { return a.op < b.op; });
  if (!gpu.marks_ns.empty()) ConvertToGpuTime(gpu, host, &trace);
  for (const auto& shard : shards_) {
    std::lock_guard<std::mutex> shard_lock(shard->mu);
    shard->Clear(0);
  }
  return trace;
}

}  // namespace tfswap
