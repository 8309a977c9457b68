#include "allocator/recording_allocator.h"

#include "tsl/profiler/lib/scoped_memory_debug_annotation.h"

namespace tfswap {

namespace {

std::atomic<int64_t> made{0};

const char* KindName(BufferKind kind) {
  switch (kind) {
    case BufferKind::kOutput:
      return "output";
    case BufferKind::kTemp:
      return "temporary";
    case BufferKind::kOther:
      return "other";
  }
  return "other";
}

}  // namespace

RecordingAllocator::RecordingAllocator(tensorflow::Allocator* next)
    : Adaptor(next), number_(made.fetch_add(1) + 1) {}

void* RecordingAllocator::AllocateRaw(size_t alignment, size_t num_bytes,
                                      const tensorflow::AllocationAttributes& attributes) {
  void* ptr = next()->AllocateRaw(alignment, num_bytes, attributes);
  if (ptr == nullptr || num_bytes < static_cast<size_t>(kListedBytes)) return ptr;
  const auto& annotation = tsl::profiler::ScopedMemoryDebugAnnotation::CurrentAnnotation();
  Block block;
  block.bytes = static_cast<int64_t>(num_bytes);
  block.op = NameOf(annotation.pending_op_name);
  block.step_id = annotation.pending_step_id;
  block.id = next_id_.fetch_add(1, std::memory_order_relaxed);
  block.kind = KindOfRegion(annotation.pending_region_type);
  block.job = Jobs::Current();
  blocks_.Insert(ptr, block, [&] {
    TellRecorders(block, [&](StepRecorder& recorder) {
      recorder.Allocated(block.bytes, *block.op, block.kind, ptr);
    });
  });
  return ptr;
}

template <typename Tell>
void RecordingAllocator::TellRecorders(const Block& block, Tell tell) {
  const uint32_t on = on_.load(std::memory_order_relaxed);
  for (size_t slot = 0; on >> slot != 0; ++slot) {
    if ((on >> slot & 1) != 0 && Concerns(block, recorded_jobs_[slot].load())) {
      tell(recorders_[slot]);
    }
  }
}

void RecordingAllocator::DeallocateRaw(void* ptr) {
  if (ptr == nullptr) return;
  blocks_.Remove(ptr, [&](const Block& block) {
    TellRecorders(block, [&](StepRecorder& recorder) { recorder.Freed(ptr); });
  });
  next()->DeallocateRaw(ptr);
}

int64_t RecordingAllocator::AllocationId(const void* ptr) const {
  return blocks_.Get(ptr, Block()).id;
}

const std::string* RecordingAllocator::NameOf(absl::string_view op) {
  // Ops ask for several blocks in a row.
  thread_local int64_t owner = 0;
  thread_local const std::string* last = nullptr;
  if (owner == number_ && *last == op) return last;
  std::lock_guard<std::mutex> lock(names_mu_);
  last = &*names_.emplace(op).first;
  owner = number_;
  return last;
}

void RecordingAllocator::ForEach(const std::function<void(const void*)>& visit) const {
  blocks_.Hold([&](auto all) { all([&](const void* ptr, const Block&) { visit(ptr); }); });
}

std::vector<Holder> RecordingAllocator::Holders(int job) {
  std::vector<Holder> holders;
  blocks_.Hold([&](auto all) {
    all([&](const void*, const Block& block) {
      if (!Concerns(block, job)) return;
      holders.push_back({*block.op, KindName(block.kind), block.bytes, block.step_id});
    });
  });
  return holders;
}

void RecordingAllocator::StartRecording(int64_t load_bytes, bool host_times, int job) {
  StepRecorder& recorder = *this->recorder(job);
  if (!host_times) recorder.StartClock();
  blocks_.Hold([&](auto all) {
    int64_t listed = 0;
    all([&](const void*, const Block& block) { listed += block.bytes; });
    recorder.Start(load_bytes - listed);
    recorded_jobs_[Jobs::SlotOf(job)].store(job);
    on_.fetch_or(1u << Jobs::SlotOf(job));
    all([&](const void* ptr, const Block& block) {
      if (Concerns(block, job)) recorder.Present(block.bytes, *block.op, block.kind, ptr);
    });
  });
}

StepTrace RecordingAllocator::StopRecording(int job) {
  on_.fetch_and(~(1u << Jobs::SlotOf(job)));
  return recorder(job)->Stop();
}

}  // namespace tfswap
