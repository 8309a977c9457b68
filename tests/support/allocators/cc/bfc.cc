#include "bfc.h"

#include <stdexcept>
#include <utility>

#include "core/memory/page_blocks.h"
#include "core/util/atomic_max.h"
#include "device/device_table.h"
#include "kernels/thread_copy_engine.h"

namespace tfswap {

namespace {

// One region, of all bytes at once.
class Pages : public tsl::SubAllocator {
 public:
  explicit Pages(char** begin) : SubAllocator({}, {}), begin_(begin) {}
  void* Alloc(size_t, size_t num_bytes, size_t* bytes_received) override {
    *bytes_received = num_bytes;
    void* pages = AllocatePageBlock(num_bytes);
    if (begin_ != nullptr) *begin_ = static_cast<char*>(pages);
    return pages;
  }
  void Free(void* ptr, size_t num_bytes) override { FreePageBlock(ptr, num_bytes); }
  bool SupportsCoalescing() const override { return false; }
  tsl::AllocatorMemoryType GetMemoryType() const override {
    return tsl::AllocatorMemoryType::kHostPageable;
  }

 private:
  char** const begin_;
};

}  // namespace

std::unique_ptr<tsl::BFCAllocator> MakeBfc(int64_t bytes, char** begin) {
  tsl::BFCAllocator::Options options;
  options.allow_growth = false;
  options.allow_retry_on_failure = false;
  return std::make_unique<tsl::BFCAllocator>(std::make_unique<Pages>(begin), bytes, "bfc", options);
}

BfcMemory::BfcMemory(int64_t bytes) : BfcMemory(std::make_unique<Memory>(bytes)) {}

BfcMemory::BfcMemory(std::unique_ptr<Memory> memory)
    : SizedAdaptor(memory->bfc.get()), memory_(std::move(memory)) {}

void* BfcMemory::AllocateRaw(size_t alignment, size_t num_bytes,
                             const tensorflow::AllocationAttributes& attributes) {
  // Without a retry, a refusal does not write the allocator's state to the log.
  const tensorflow::AllocationAttributes quietly(false, true, nullptr);
  void* ptr = next()->AllocateRaw(alignment, num_bytes, quietly);
  if (ptr == nullptr) return nullptr;
  const auto size = static_cast<int64_t>(next()->AllocatedSize(ptr));
  RaiseTo(static_cast<char*>(ptr) + size - memory_->begin, &high_water_);
  return ptr;
}

BfcMemory* ServeCpuFromBfc(int64_t bytes) {
  if (DevicesMade() > 0) throw std::runtime_error("TensorFlow has created its devices already");
  auto* memory = new BfcMemory(bytes);  // as long as the device, which is never destroyed
  auto* device = new DeviceAllocator(memory, [](tensorflow::Allocator* next) {
    return std::make_unique<tensorflow::AllocatorWrapper>(next);
  });
  new ThreadCopyEngine(device);
  RegisterDevice(0, device);
  return memory;
}

}  // namespace tfswap
