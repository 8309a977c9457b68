#include "allocator/recording_allocator.h"

#include "tsl/profiler/lib/scoped_memory_debug_annotation.h"

namespace tfswap {

namespace {

std::atomic<int64_t> count{0};

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
    : Adaptor(next), number_(count.fetch_add(1) + 1) {}

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
  blocks_.Insert(ptr, block, [&] {
    if (recorder_.on()) recorder_.Allocated(block.bytes, *block.op, block.kind, ptr);
  });
  return ptr;
}

void RecordingAllocator::DeallocateRaw(void* ptr) {
  if (ptr == nullptr) return;
  blocks_.Remove(ptr, [&](const Block&) {
    if (recorder_.on()) recorder_.Freed(ptr);
  });
  next()->DeallocateRaw(ptr);
}

int64_t RecordingAllocator::AllocationId(const void* ptr) const {
  return blocks_.Get(ptr, Block()).id;
}

const std::string* RecordingAllocator::NameOf(absl::string_view op) {
  // An op often requests several blocks in a row.
  thread_local int64_t owner = 0;
  thread_local const std::string* last = nullptr;
  if (owner == number_ && *last == op) return last;
  std::lock_guard<std::mutex> lock(names_mu_);
  last = &*names_.emplace(op).first;
  owner = number_;
  return last;
}

std::vector<Holder> RecordingAllocator::Holders() const {
  std::vector<Holder> holders;
  blocks_.Hold([&](auto all) {
    all([&](const void*, const Block& block) {
      holders.push_back({*block.op, KindName(block.kind), block.bytes, block.step_id});
    });
  });
  return holders;
}

void RecordingAllocator::StartRecording(int64_t load_bytes, bool host_times) {
  if (!host_times) recorder_.StartClock();
  blocks_.Hold([&](auto all) {
    int64_t listed = 0;
    all([&](const void*, const Block& block) { listed += block.bytes; });
    recorder_.Start(load_bytes - listed);
    all([&](const void* ptr, const Block& block) {
      recorder_.Present(block.bytes, *block.op, block.kind, ptr);
    });
  });
}

}  // namespace tfswap
