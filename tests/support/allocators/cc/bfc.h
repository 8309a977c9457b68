#ifndef TESTS_SUPPORT_ALLOCATORS_BFC_H_
#define TESTS_SUPPORT_ALLOCATORS_BFC_H_

#include <atomic>
#include <cstdint>
#include <memory>

#include "allocator/adaptor.h"
#include "xla/tsl/framework/bfc_allocator.h"

namespace tfswap {

// TensorFlow's BFC allocator over `bytes` bytes of host memory, reserved with the first block;
// writes where they begin to `begin` unless that is null.
std::unique_ptr<tsl::BFCAllocator> MakeBfc(int64_t bytes, char** begin);

// The memory of a device: one BFC allocator, whose footprint is measured. Thread-safe.
class BfcMemory : public SizedAdaptor {
 public:
  explicit BfcMemory(int64_t bytes);

  using SizedAdaptor::AllocateRaw;
  void* AllocateRaw(size_t alignment, size_t num_bytes,
                    const tensorflow::AllocationAttributes& attributes) override;
  size_t RequestedSize(const void* ptr) const override { return next()->RequestedSize(ptr); }
  // As the system allocator: the device's memory has no size of its own.
  std::optional<tensorflow::AllocatorStats> GetStats() override { return std::nullopt; }

  // The end of the highest block so far.
  int64_t high_water_bytes() const { return high_water_.load(); }

 private:
  struct Memory {
    explicit Memory(int64_t bytes) : bfc(MakeBfc(bytes, &begin)) {}
    char* begin = nullptr;
    const std::unique_ptr<tsl::BFCAllocator> bfc;
  };
  // `memory` exists before the base class, which refers to it.
  explicit BfcMemory(std::unique_ptr<Memory> memory);

  const std::unique_ptr<Memory> memory_;
  std::atomic<int64_t> high_water_{0};
};

// Makes CPU:0 allocate from a BFC allocator of that size, under tfswap's budget and statistics:
// what a device does that knows nothing about its steps. Call it before TensorFlow creates its
// devices; throws std::runtime_error afterwards. The device then has no slab.
BfcMemory* ServeCpuFromBfc(int64_t bytes);

}  // namespace tfswap

#endif  // TESTS_SUPPORT_ALLOCATORS_BFC_H_
