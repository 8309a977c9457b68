#include "allocator/device_allocator.h"

#include <memory>

namespace tfswap {

DeviceAllocator::Parts::Parts(const std::string& name, tensorflow::Allocator* small)
    : system(name, small),
      bfc(&system),
      budget(&bfc),
      slab(&budget, &budget, [this] { budget.NotifyFreed(); }),
      recording(&slab) {
  budget.SetSpareMemory(&slab);
  budget.SetHolders(&recording);
  budget.SetUncounted(RecordingAllocator::kHeaderBytes);
}

DeviceAllocator::DeviceAllocator(const std::string& name, tensorflow::Allocator* small)
    : DeviceAllocator(std::make_unique<Parts>(name, small)) {}

DeviceAllocator::DeviceAllocator(std::unique_ptr<Parts> parts)
    : StatisticsAllocator(&parts->recording), owned_(std::move(parts)), parts_(*owned_) {}

void DeviceAllocator::StartRecording() {
  parts_.recording.StartRecording(GetStats()->bytes_in_use);
}

}  // namespace tfswap
