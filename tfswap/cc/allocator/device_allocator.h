#ifndef TFSWAP_CC_ALLOCATOR_DEVICE_ALLOCATOR_H_
#define TFSWAP_CC_ALLOCATOR_DEVICE_ALLOCATOR_H_

#include <atomic>
#include <functional>
#include <memory>
#include <string>

#include "allocator/budget_allocator.h"
#include "allocator/dummy_page_allocator.h"
#include "allocator/kernel_guard.h"
#include "allocator/recording_allocator.h"
#include "allocator/slab_allocator.h"
#include "allocator/statistics_allocator.h"
#include "allocator/system_allocator.h"
#include "allocator/workspace_allocator.h"

namespace tfswap {

// The allocator of one device. Its adaptors count the load, list and record blocks, place blocks at
// planned addresses, and enforce the budget.
class DeviceAllocator : public StatisticsAllocator {
 public:
  // For host memory.
  explicit DeviceAllocator(const std::string& name);
  // For a GPU's memory, which `memory` allocates. `watch` makes an allocator that sees every
  // address; it is placed between the recording allocator and the slab.
  using Watch = std::function<std::unique_ptr<tensorflow::Allocator>(tensorflow::Allocator* next)>;
  DeviceAllocator(tensorflow::Allocator* memory, const Watch& watch);

  using StatisticsAllocator::AllocateRaw;
  // A forked process allocates from the system, uncounted, and does not free its parent's blocks.
  void* AllocateRaw(size_t alignment, size_t num_bytes,
                    const tensorflow::AllocationAttributes& attributes) override;
  void DeallocateRaw(void* ptr) override;

  BudgetAllocator* budget() { return &parts_.budget; }
  SlabAllocator* slab() { return &parts_.slab; }
  RecordingAllocator* recording() { return &parts_.recording; }
  // Null for host memory, because CPU kernels do not request workspaces.
  WorkspaceAllocator* workspaces() { return parts_.workspaces.get(); }
  // The allocator that `watch` made.
  tensorflow::Allocator* watch() { return parts_.watch.get(); }
  // Every kernel runs through it.
  GuardPost* guard() { return &guard_; }
  StepRecorder* recorder() { return parts_.recording.recorder(); }
  void StartRecording(bool host_times);
  void RestartWindow();
  // Return whether the memory is the system's, whose blocks can be swapped in sections.
  bool OnHost() const { return parts_.system != nullptr; }
  // Release the end of a block that is used only by a copy of its first `kept_bytes` bytes. Return
  // the released bytes.
  int64_t ReleaseEnd(void* ptr, int64_t kept_bytes);
  // Charge the first `bytes` bytes of a block that is charged only in part (KernelScope::pays).
  // Waits while copies out are running. Return false if the budget still has no room.
  bool Pay(void* ptr, int64_t bytes);
  // Return the size of the device's memory, regardless of the budget; 0 if it is unknown.
  int64_t memory_bytes();

 private:
  struct Parts {
    explicit Parts(const std::string& name);
    Parts(tensorflow::Allocator* memory, const Watch& watch);
    void Connect();
    tensorflow::Allocator* outermost();
    std::unique_ptr<SystemAllocator> system;
    BudgetAllocator budget;
    SlabAllocator slab;
    std::unique_ptr<tensorflow::Allocator> watch;
    RecordingAllocator recording;
    DummyPageAllocator dummy_pages;
    std::unique_ptr<WorkspaceAllocator> workspaces;
  };
  // The parts exist before the base class, which refers to them.
  explicit DeviceAllocator(std::unique_ptr<Parts> parts);

  std::unique_ptr<Parts> owned_;
  Parts& parts_;
  GuardPost guard_;
};

}  // namespace tfswap

#endif  // TFSWAP_CC_ALLOCATOR_DEVICE_ALLOCATOR_H_
