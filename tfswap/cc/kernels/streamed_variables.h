#ifndef TFSWAP_CC_KERNELS_STREAMED_VARIABLES_H_
#define TFSWAP_CC_KERNELS_STREAMED_VARIABLES_H_

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "allocator/device_allocator.h"
#include "allocator/kernel_guard.h"
#include "allocator/kernel_scope.h"
#include "far/far_memory.h"
#include "kernels/use_order.h"
#include "kernels/worker.h"
#include "tensorflow/core/framework/resource_var.h"

namespace tfswap {

class CopyEngine;

// Swaps the values of variables: evicts them when memory runs out, and restores them before a
// kernel or a read outside of a step accesses them.
//
//             Reclaim()                                 Before() a kernel, or prefetched
//  on device ------------> evicting -> in far memory ------------> fetching -> on device
//
// Steps repeat the uses of variables in the same order (use_order.h), so the one that is used again
// last is evicted first (Belady), and those that are used next are prefetched while a kernel runs.
// A value that has not been written since its fetch is evicted without a copy.
//
// On a GPU, copies are commands that are enqueued in host order: a value counts as evicted or
// fetched as soon as its copy is enqueued, and the GPU is given the dependencies
// (core/gpu/hazard_tracker.h).
class StreamedVariables : public KernelGuard {
 public:
  using VarPtr = tensorflow::core::RefCountPtr<tensorflow::Var>;

  // Smaller variables are not swapped.
  static constexpr int64_t kMinBytes = 16 << 10;

  // For the device of `allocator`; copies values with `engine`.
  StreamedVariables(DeviceAllocator* allocator, CopyEngine* engine);

  // Enable or disable swapping; disabling restores all values. Return "" or why some cannot be
  // restored.
  std::string SetOn(bool on);
  bool on() const { return on_.load(); }
  // Evict values until `bytes` are free or none is evictable; return the freed bytes.
  int64_t Reclaim(int64_t bytes);
  using Done = std::function<void(const absl::Status&)>;

  // Evict a value after its last use in a planned step. `done` runs when it is evicted, or stays
  // because it is in use or far memory is full; immediately if a thread makes the copy and no op
  // waits for it (`detached`).
  void SwapOut(VarPtr var, const PlacementRequest& request, bool detached, Done done);
  // Restore a value for a planned step; `done` runs when it is on the device or there was no memory
  // for it.
  void SwapIn(VarPtr var, std::function<void()> done);

  // Note that a checkpoint (if not null) has the current value, which therefore needs no copy in a
  // spill file, and place the value.
  void SetCheckpoint(VarPtr var, std::shared_ptr<const CheckpointValue> checkpoint);
  // Replace the value by that of a checkpoint, which has the same size, without reading it. Return
  // whether that was possible.
  bool ReplaceByCheckpoint(VarPtr var, std::shared_ptr<const CheckpointValue> checkpoint);
  // Whether values that this thread assigns are placed by SetCheckpoint() only.
  static thread_local bool defers_placing;

  // Return the shape of the value, wherever it is.
  tensorflow::TensorShape ShapeOf(tensorflow::Var* var);
  // Copy rows of the value, which has this shape, to `output`. They must exist.
  absl::Status GatherRows(VarPtr var, const tensorflow::TensorShape& shape,
                          const std::vector<int64_t>& rows, char* output);

  absl::Status Before(tensorflow::OpKernelContext* context, Held* held) override;
  void After(const Held& held) override;
  int64_t BytesAway() override;

 private:
  enum class State { kOnDevice, kEvicting, kInFarMemory, kFetching, kAssigning };
  using Role = KernelScope::Role;
  using Effort = KernelScope::Effort;

  struct Entry {
    State state = State::kOnDevice;
    tensorflow::core::WeakPtr<tensorflow::Var> var;
    tensorflow::TensorShape shape;  // of the evicted value
    int64_t bytes = 0;
    FarCopy far_copy;                                   // of the current value, if held
    std::shared_ptr<const CheckpointValue> checkpoint;  // that has the current value, or null
    PlacementRequest request;                           // of far_copy
    const void* filled = nullptr;  // destination of the last fetch, until a kernel uses it
    int readers = 0;               // kernels that use it now
    bool is_placed = false;        // Place() has been called since it was assigned
    int64_t last_use = 0;
  };

  Entry* EntryForLocked(tensorflow::Var* var);
  void RemoveEntry(tensorflow::Var* var);
  // Prepare a value in far memory for a kernel that replaces all of it, without a fetch, and return
  // whether that was done; EndAssign() must follow the kernel.
  bool BeginAssign(tensorflow::Var* var, const tensorflow::Tensor& value,
                   std::unique_lock<std::mutex>* lock);
  // Drop the far copy, or keep it if the kernel has failed.
  void EndAssign(tensorflow::Var* var, Entry* entry, std::unique_lock<std::mutex>* lock);
  // Copy the value to the device if it is in other memory; to far memory if the device is full and
  // no kernel needs it now. Eager assignments share NumPy's memory with a CPU, which no budget
  // counts.
  void Place(tensorflow::Var* var, Entry* entry, bool needed, std::unique_lock<std::mutex>* lock);
  absl::StatusOr<bool> CopyOut(const tensorflow::Tensor& value, const PlacementRequest& request,
                               Entry* entry);
  tensorflow::Tensor Allocate(tensorflow::DataType dtype, const tensorflow::TensorShape& shape,
                              Role role, Effort effort);
  // Wait until the value is on the device or in far memory; null if its entry is gone.
  Entry* WaitForCopyLocked(tensorflow::Var* var, std::unique_lock<std::mutex>* lock);
  // Wait for a running copy, and fetch the value if it is in far memory.
  absl::Status EnsureOnDevice(tensorflow::Var* var, Role role, Effort effort,
                              std::unique_lock<std::mutex>* lock);
  // Fetch the value. The state must be kFetching and the lock not be held.
  absl::Status Fetch(tensorflow::Var* var, Entry* entry, Role role, Effort effort);
  // The same, into the memory of `value`.
  absl::Status Fill(tensorflow::Var* var, Entry* entry, const tensorflow::Tensor& value);
  // Evict the value if it is unused and large enough. Return the freed bytes, or -1 if far memory
  // is full. Releases the lock during the copy.
  absl::StatusOr<int64_t> TryEvict(tensorflow::Var* var, const PlacementRequest& request,
                                   std::unique_lock<std::mutex>* lock);
  // Evict values that are used again more than `distance` uses from now, or at no known time, the
  // last one first.
  int64_t Evict(int64_t bytes, int64_t distance);
  // Prefetch the variables that are used next. `at_once`: only enqueue commands; copies by threads
  // are scheduled.
  void Prefetch(bool at_once);
  void SchedulePrefetch();
  // Return the next variable to prefetch and how many uses from now it is used; null if there is
  // none.
  std::pair<VarPtr, int64_t> NextAwayLocked() const;
  // Return whether its memory belongs to the device.
  bool IsOnDevice(const tensorflow::Tensor& value) const;

  DeviceAllocator* const allocator_;
  CopyEngine* const engine_;
  Worker prefetch_worker_{"tfswap_weights"};
  std::atomic<bool> on_{false};
  std::atomic<bool> planned_{false};  // a plan schedules the fetches, so nothing is prefetched
  std::atomic<bool> prefetching_{false};
  std::mutex mu_;
  std::condition_variable moved_;
  // References to entries are stable; an entry is removed with its variable.
  std::unordered_map<tensorflow::Var*, Entry> entries_;
  int64_t uses_ = 0;
  UseOrder order_;
};

}  // namespace tfswap

#endif  // TFSWAP_CC_KERNELS_STREAMED_VARIABLES_H_
