#ifndef TFSWAP_ALLOCATOR_DEVICE_ALLOCATOR_H_
#define TFSWAP_ALLOCATOR_DEVICE_ALLOCATOR_H_

#include <memory>
#include <string>

#include "allocator/bfc_arenas.h"
#include "allocator/budget_allocator.h"
#include "allocator/recording_allocator.h"
#include "allocator/slab_allocator.h"
#include "allocator/stand_in_allocator.h"
#include "allocator/statistics_allocator.h"
#include "allocator/system_allocator.h"

namespace tfswap {

// The allocator of one device: what is counted, who holds what, planned addresses, the cap, memory.
class DeviceAllocator : public StatisticsAllocator {
 public:
  explicit DeviceAllocator(const std::string& name);

  BudgetAllocator* budget() { return &parts_.budget; }
  SlabAllocator* slab() { return &parts_.slab; }
  RecordingAllocator* recording() { return &parts_.recording; }
  BfcArenas* bfc() { return &parts_.bfc; }
  StepRecorder* recorder() { return parts_.recording.recorder(); }
  void StartRecording();

 private:
  struct Parts {
    explicit Parts(const std::string& name);
    SystemAllocator system;
    BfcArenas bfc;
    BudgetAllocator budget;
    SlabAllocator slab;
    RecordingAllocator recording;
    StandInAllocator stand_in;
  };
  // Made before the base that is put over them.
  explicit DeviceAllocator(std::unique_ptr<Parts> parts);

  std::unique_ptr<Parts> owned_;
  Parts& parts_;
};

}  // namespace tfswap

#endif  // TFSWAP_ALLOCATOR_DEVICE_ALLOCATOR_H_
