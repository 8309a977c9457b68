#include "allocator/recording_allocator.h"

#include <algorithm>

#include "tsl/profiler/lib/scoped_memory_debug_annotation.h"

namespace tfswap {

namespace {

const char* NameOf(BufferKind kind) {
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

struct alignas(64) RecordingAllocator::Header {
  Header* previous;
  Header* next;
  int64_t bytes;
  int64_t id;
  const std::string* op;  // null: a block too small to be listed
  int64_t step_id;
  uint32_t padding;  // from the block's begin to the user's
  BufferKind kind;
};

RecordingAllocator::Header* RecordingAllocator::HeaderOf(const void* ptr) {
  static_assert(sizeof(Header) == kHeaderBytes, "the header must keep 64-byte alignment");
  return reinterpret_cast<Header*>(const_cast<char*>(static_cast<const char*>(ptr)) -
                                   sizeof(Header));
}

void* RecordingAllocator::AllocateRaw(size_t alignment, size_t num_bytes,
                                      const tensorflow::AllocationAttributes& attributes) {
  const size_t padding = std::max(alignment, sizeof(Header));
  if (num_bytes + padding < num_bytes) return nullptr;
  char* block = static_cast<char*>(next()->AllocateRaw(padding, num_bytes + padding, attributes));
  if (block == nullptr) return nullptr;
  void* ptr = block + padding;
  Header* header = HeaderOf(ptr);
  *header = Header{};
  header->bytes = static_cast<int64_t>(num_bytes);
  header->padding = static_cast<uint32_t>(padding);
  if (header->bytes < kListedBytes) return ptr;
  const auto& annotation = tsl::profiler::ScopedMemoryDebugAnnotation::CurrentAnnotation();
  header->kind = KindOfRegion(annotation.pending_region_type);
  header->step_id = annotation.pending_step_id;
  std::lock_guard<std::mutex> lock(mu_);
  header->id = next_id_++;
  header->op = &*names_.emplace(annotation.pending_op_name).first;
  header->next = blocks_;
  if (blocks_ != nullptr) blocks_->previous = header;
  blocks_ = header;
  if (recorder_.on()) recorder_.Allocated(header->bytes, *header->op, header->kind, ptr);
  return ptr;
}

void RecordingAllocator::DeallocateRaw(void* ptr) {
  if (ptr == nullptr) return;
  Header* header = HeaderOf(ptr);
  if (header->op != nullptr) {
    std::lock_guard<std::mutex> lock(mu_);
    if (header->previous != nullptr) header->previous->next = header->next;
    if (header->next != nullptr) header->next->previous = header->previous;
    if (blocks_ == header) blocks_ = header->next;
    if (recorder_.on()) recorder_.Freed(ptr);
  }
  next()->DeallocateRaw(static_cast<char*>(ptr) - header->padding);
}

size_t RecordingAllocator::RequestedSize(const void* ptr) const {
  return static_cast<size_t>(HeaderOf(ptr)->bytes);
}

int64_t RecordingAllocator::AllocationId(const void* ptr) const { return HeaderOf(ptr)->id; }

std::vector<Holder> RecordingAllocator::Holders() {
  std::vector<Holder> holders;
  std::lock_guard<std::mutex> lock(mu_);
  for (Header* block = blocks_; block != nullptr; block = block->next) {
    holders.push_back({*block->op, NameOf(block->kind), block->bytes, block->step_id});
  }
  return holders;
}

void RecordingAllocator::StartRecording(int64_t load_bytes) {
  std::lock_guard<std::mutex> lock(mu_);
  int64_t listed = 0;
  for (Header* block = blocks_; block != nullptr; block = block->next) listed += block->bytes;
  recorder_.Start(load_bytes - listed);
  for (Header* block = blocks_; block != nullptr; block = block->next) {
    recorder_.Present(block->bytes, *block->op, block->kind, block + 1);
  }
}

}  // namespace tfswap
