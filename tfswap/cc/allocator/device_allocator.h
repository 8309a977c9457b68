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

// The allocator of one device: what is counted, who holds what, planned addresses, the cap, memory.
class DeviceAllocator : public StatisticsAllocator {
 public:
  // Of host memory.
  explicit DeviceAllocator(const std::string& name);
  // Of a GPU's memory, which `memory` has. `watch` may put something between who holds what and
  // where it is, which sees every address.
  using Watch = std::function<std::unique_ptr<tensorflow::Allocator>(tensorflow::Allocator* next)>;
  DeviceAllocator(tensorflow::Allocator* memory, const Watch& watch);

  using StatisticsAllocator::AllocateRaw;
  // A forked process has memory of its own, which nobody counts, and leaves its parent's alone.
  void* AllocateRaw(size_t alignment, size_t num_bytes,
                    const tensorflow::AllocationAttributes& attributes) override;
  void DeallocateRaw(void* ptr) override;

  BudgetAllocator* budget() { return &parts_.budget; }
  SlabAllocator* slab() { return &parts_.slab; }
  RecordingAllocator* recording() { return &parts_.recording; }
  // Null where the memory is the host's: kernels there ask for no workspaces.
  WorkspaceAllocator* workspaces() { return parts_.workspaces.get(); }
  // What `watch` made.
  tensorflow::Allocator* watch() { return parts_.watch.get(); }
  // Where each kernel passes.
  GuardPost* guard() { return &guard_; }
  StepRecorder* recorder() { return parts_.recording.recorder(); }
  void StartRecording(bool host_times);
  void RestartWindow();
  // Whether the memory is the system's, whose blocks can move in sections.
  bool OnHost() const { return parts_.system != nullptr; }
  // Gives back what is behind the first bytes of a block that nobody uses any more but to copy
  // these; answers how much that is.
  int64_t ReleaseEnd(void* ptr, int64_t kept_bytes);
  // Pays for the first `bytes` bytes of a block that has paid for less (KernelScope::pays). Waits
  // while copies out are on their way; false if that was not enough.
  bool Pay(void* ptr, int64_t bytes);
  // All the memory there is, whatever the budget; 0 where nobody knows.
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
    DummyPageAllocator stand_in;
    std::unique_ptr<WorkspaceAllocator> workspaces;
  };
  // Made before the base that is put over them.
  explicit DeviceAllocator(std::unique_ptr<Parts> parts);

  std::unique_ptr<Parts> owned_;
  Parts& parts_;
  GuardPost guard_;
};

}  // namespace tfswap

#endif  // TFSWAP_CC_ALLOCATOR_DEVICE_ALLOCATOR_H_
