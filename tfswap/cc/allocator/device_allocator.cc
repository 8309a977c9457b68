#include "allocator/device_allocator.h"

#include <memory>

namespace tfswap {

DeviceAllocator::Parts::Parts(const std::string& name)
    : system(name),
      bfc(&system),
      budget(&bfc),
      slab(&budget, &budget, [this] { budget.NotifyFreed(); }),
      recording(&slab),
      stand_in(&recording) {
  budget.SetSpareMemory(&slab);
  budget.SetHolders(&recording);
}

DeviceAllocator::DeviceAllocator(const std::string& name)
    : DeviceAllocator(std::make_unique<Parts>(name)) {}

DeviceAllocator::DeviceAllocator(std::unique_ptr<Parts> parts)
    : StatisticsAllocator(&parts->stand_in), owned_(std::move(parts)), parts_(*owned_) {}

void DeviceAllocator::StartRecording() {
  parts_.recording.StartRecording(GetStats()->bytes_in_use);
}

}  // namespace tfswap
