#include "core/gpu/gpu_step.h"

#include <algorithm>
#include <tuple>
#include <unordered_map>
#include <utility>

namespace tfswap {

namespace {

// A host time and the corresponding GPU time.
struct Anchor {
  int64_t host_ns;
  int64_t gpu_ns;
  bool op_follows;  // up to the next anchor, this thread is issuing an op
};

// Interpolate the GPU time of `ns` between two anchors.
int64_t Between(const Anchor& a, const Anchor& b, int64_t ns) {
  if (b.host_ns <= a.host_ns) return b.gpu_ns;
  const double part =
      static_cast<double>(ns - a.host_ns) / static_cast<double>(b.host_ns - a.host_ns);
  return a.gpu_ns + static_cast<int64_t>(part * static_cast<double>(b.gpu_ns - a.gpu_ns));
}

// Maps host times to GPU times; for one thread, or for all.
class ClockMap {
 public:
  void Add(const Anchor& anchor) { anchors_.push_back(anchor); }
  bool empty() const { return anchors_.empty(); }

  void Settle() {
    std::stable_sort(anchors_.begin(), anchors_.end(),
                     [](const Anchor& a, const Anchor& b) { return a.host_ns < b.host_ns; });
    for (size_t i = 1; i < anchors_.size(); ++i) {
      anchors_[i].gpu_ns = std::max(anchors_[i].gpu_ns, anchors_[i - 1].gpu_ns);
    }
  }

  int64_t At(int64_t ns) const {
    const size_t after = After(ns);
    if (after == 0) return anchors_.front().gpu_ns;
    if (after == anchors_.size()) return anchors_.back().gpu_ns;
    return Between(anchors_[after - 1], anchors_[after], ns);
  }

  // Like At(), but between two ops of this thread use the map of all threads.
  int64_t At(int64_t ns, const ClockMap& all) const {
    const size_t after = After(ns);
    if (after > 0 && after < anchors_.size() && anchors_[after - 1].op_follows) {
      return Between(anchors_[after - 1], anchors_[after], ns);
    }
    int64_t gpu_ns = all.At(ns);
    if (after < anchors_.size()) gpu_ns = std::min(gpu_ns, anchors_[after].gpu_ns);
    if (after > 0) gpu_ns = std::max(gpu_ns, anchors_[after - 1].gpu_ns);
    return gpu_ns;
  }

 private:
  // The first anchor after `ns`.
  size_t After(int64_t ns) const {
    return std::upper_bound(
               anchors_.begin(), anchors_.end(), ns,
               [](int64_t value, const Anchor& anchor) { return value < anchor.host_ns; }) -
           anchors_.begin();
  }

  std::vector<Anchor> anchors_;
};

// Return how long compute waited within [begin, end). `waits` are in order.
int64_t Waited(const std::vector<std::pair<int64_t, int64_t>>& waits, int64_t begin, int64_t end) {
  auto wait = std::partition_point(waits.begin(), waits.end(),
                                   [&](const auto& each) { return each.second <= begin; });
  int64_t sum = 0;
  for (; wait != waits.end() && wait->first < end; ++wait) {
    sum += std::max<int64_t>(0, std::min(end, wait->second) - std::max(begin, wait->first));
  }
  return sum;
}

}  // namespace

void ConvertToGpuTime(const GpuTimes& gpu, const HostRecording& host, StepTrace* trace) {
  // Several threads issue ops concurrently, but the GPU runs them one after the other.
  std::vector<int32_t> marked;
  for (size_t op = 0; op < trace->ops.size(); ++op) {
    if (host.ops[op].end_mark >= 0) marked.push_back(static_cast<int32_t>(op));
  }
  std::sort(marked.begin(), marked.end(),
            [&](int32_t a, int32_t b) { return host.ops[a].end_mark < host.ops[b].end_mark; });
  ClockMap all;
  std::unordered_map<int32_t, ClockMap> threads;
  int64_t busy_until = 0;
  std::vector<std::pair<int64_t, int64_t>> intervals(trace->ops.size());
  for (const int32_t op : marked) {
    const HostRecording::Op& marks = host.ops[op];
    const int64_t end = gpu.marks_ns[marks.end_mark];
    const int64_t begin = std::min(end, std::max(gpu.marks_ns[marks.begin_mark], busy_until));
    busy_until = end;
    intervals[op] = {begin, end};
    const OpRecord& record = trace->ops[op];
    for (ClockMap* progress : {&all, &threads[marks.thread]}) {
      progress->Add({record.start_ns, begin, /*op_follows=*/true});
      progress->Add({record.end_ns, end, /*op_follows=*/false});
    }
  }
  if (all.empty()) return;
  all.Settle();
  for (auto& [thread, progress] : threads) progress.Settle();
  const auto moved = [&](int64_t ns, int32_t thread) {
    const auto known = threads.find(thread);
    return known == threads.end() ? all.At(ns) : known->second.At(ns, all);
  };

  for (size_t op = 0; op < trace->ops.size(); ++op) {
    OpRecord& record = trace->ops[op];
    if (host.ops[op].end_mark >= 0) {
      // The GPU is idle while the host waits for memory before it issues the kernels of the op.
      const int64_t host_wait_ns = record.wait_ns;
      const int64_t given_ns = record.start_ns + host_wait_ns;
      std::tie(record.start_ns, record.end_ns) = intervals[op];
      const int64_t idle_ns = std::clamp<int64_t>(given_ns - record.start_ns, 0, host_wait_ns);
      record.wait_ns = std::min(idle_ns + Waited(gpu.waits, record.start_ns, record.end_ns),
                                record.end_ns - record.start_ns);
      continue;
    }
    record.wait_ns = 0;
    record.start_ns = moved(record.start_ns, host.ops[op].thread);
    if (record.end_ns >= 0) record.end_ns = std::max(record.start_ns, all.At(record.end_ns));
  }
  for (size_t b = 0; b < trace->buffers.size(); ++b) {
    BufferRecord& buffer = trace->buffers[b];
    if (buffer.alloc_ns >= 0) {
      buffer.alloc_ns = moved(buffer.alloc_ns, host.buffers[b].alloc_thread);
    }
    if (buffer.free_ns >= 0) buffer.free_ns = moved(buffer.free_ns, host.buffers[b].free_thread);
  }
  for (const AccessRecord& access : trace->accesses) {
    const OpRecord& op = trace->ops[access.op];
    BufferRecord& buffer = trace->buffers[access.buffer];
    if (host.ops[access.op].end_mark < 0) continue;  // the op may have waited for its own output
    if (buffer.alloc_ns >= 0) buffer.alloc_ns = std::min(buffer.alloc_ns, op.start_ns);
    if (buffer.free_ns >= 0) buffer.free_ns = std::max(buffer.free_ns, op.end_ns);
  }
  trace->start_ns = std::min(trace->start_ns, gpu.marks_ns.front());
  trace->end_ns = std::max(trace->end_ns, gpu.marks_ns.back());
}

}  // namespace tfswap
