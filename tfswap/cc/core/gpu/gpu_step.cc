#include "core/gpu/gpu_step.h"

#include <algorithm>
#include <tuple>
#include <unordered_map>
#include <utility>

namespace tfswap {

namespace {

// A time of the host's, and the GPU's when it had got there.
struct Anchor {
  int64_t host_ns;
  int64_t gpu_ns;
  bool op_follows;  // up to the next anchor, this thread is giving an op to the GPU
};

// The GPU's time between two anchors around `ns`, by the host's progress between them.
int64_t Between(const Anchor& a, const Anchor& b, int64_t ns) {
  if (b.host_ns <= a.host_ns) return b.gpu_ns;
  const double part =
      static_cast<double>(ns - a.host_ns) / static_cast<double>(b.host_ns - a.host_ns);
  return a.gpu_ns + static_cast<int64_t>(part * static_cast<double>(b.gpu_ns - a.gpu_ns));
}

// What the GPU had got to at each time of the host's; of one thread, or of all.
class Progress {
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

  // As At(), but between two ops of this thread the others say when.
  int64_t At(int64_t ns, const Progress& all) const {
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
  // The first anchor behind `ns`.
  size_t After(int64_t ns) const {
    return std::upper_bound(
               anchors_.begin(), anchors_.end(), ns,
               [](int64_t value, const Anchor& anchor) { return value < anchor.host_ns; }) -
           anchors_.begin();
  }

  std::vector<Anchor> anchors_;
};

// How much of [begin, end) compute waited. `waits` are in order.
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

void MoveToCard(const GpuTimes& gpu, const HostSide& host, StepTrace* trace) {
  // Ops of several threads are given to the GPU at once, but it runs them one after the other.
  std::vector<int32_t> marked;
  for (size_t op = 0; op < trace->ops.size(); ++op) {
    if (host.ops[op].end_mark >= 0) marked.push_back(static_cast<int32_t>(op));
  }
  std::sort(marked.begin(), marked.end(),
            [&](int32_t a, int32_t b) { return host.ops[a].end_mark < host.ops[b].end_mark; });
  Progress all;
  std::unordered_map<int32_t, Progress> threads;
  int64_t busy_until = 0;
  std::vector<std::pair<int64_t, int64_t>> intervals(trace->ops.size());
  for (const int32_t op : marked) {
    const HostSide::Op& marks = host.ops[op];
    const int64_t end = gpu.marks_ns[marks.end_mark];
    const int64_t begin = std::min(end, std::max(gpu.marks_ns[marks.begin_mark], busy_until));
    busy_until = end;
    intervals[op] = {begin, end};
    const OpRecord& record = trace->ops[op];
    for (Progress* progress : {&all, &threads[marks.thread]}) {
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
      // The GPU is idle until the host, which waited for memory, gives it the op's kernels.
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
    if (host.ops[access.op].end_mark < 0) continue;  // it may have waited for what it made
    if (buffer.alloc_ns >= 0) buffer.alloc_ns = std::min(buffer.alloc_ns, op.start_ns);
    if (buffer.free_ns >= 0) buffer.free_ns = std::max(buffer.free_ns, op.end_ns);
  }
  trace->start_ns = std::min(trace->start_ns, gpu.marks_ns.front());
  trace->end_ns = std::max(trace->end_ns, gpu.marks_ns.back());
}

}  // namespace tfswap
