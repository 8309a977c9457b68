#ifndef TFSWAP_CC_KERNELS_STREAMED_VARIABLES_H_
#define TFSWAP_CC_KERNELS_STREAMED_VARIABLES_H_

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <unordered_map>

#include "allocator/device_allocator.h"
#include "allocator/kernel_guard.h"
#include "far/far_memory.h"
#include "kernels/worker.h"
#include "tensorflow/core/framework/resource_var.h"

namespace tfswap {

class CopyEngine;

// Variables whose values leave the device when memory runs out, and are back before a kernel looks
// at them: a step's kernels, but also what reads a variable outside of any step.
//
//          Reclaim()                    Before() a kernel, or ahead of it
//   home ------------> leaving -> away --------------------------> coming -> home
//
// Steps use variables in the same order again and again. So the one that was used last is needed
// last, and leaves first; and after each one the next ones in the order of the step before are
// fetched ahead, while its kernel runs. A value that was not written to since it was fetched leaves
// without a copy.
//
// On a GPU, copies are commands that are given where they come up, in the order of the host: a
// value has left when its copy out was given, and is home when its copy in was. What it touches the
// GPU makes wait (core/gpu/hazard_tracker.h).
class StreamedVariables : public KernelGuard {
 public:
  using VarPtr = tensorflow::core::RefCountPtr<tensorflow::Var>;

  // Smaller variables stay.
  static constexpr int64_t kLeastBytes = 64 << 10;

  // Moves values of the device that `allocator` serves, by the engine's ways.
  StreamedVariables(DeviceAllocator* allocator, CopyEngine* engine);

  // From now on, or no more: then all values come back. Answers "" or why some cannot.
  std::string SetOn(bool on);
  bool on() const { return on_.load(); }
  // Has values leave until so many bytes are free, or there are none that may; answers how many.
  int64_t Reclaim(int64_t bytes);
  using Done = std::function<void(const absl::Status&)>;

  // A plan has no more use for the value in this step. `done` runs when it has left, or stays
  // because somebody looks at it or far memory is full; at once if a thread is to copy it and
  // nobody waits for that (`detached`).
  void Leave(VarPtr var, const PlacementRequest& request, bool detached, Done done);
  // A plan wants it back; `done` runs when it is, or there was no memory for it.
  void Return(VarPtr var, std::function<void()> done);

  absl::Status Before(tensorflow::OpKernelContext* context, Held* held) override;
  void After(const Held& held) override;

 private:
  enum class State { kHome, kLeaving, kAway, kComing };
  // How a value that comes waits for memory: as a kernel that needs it now, as one that a plan
  // wants back, or not at all.
  enum class AllocationWaitPolicy { kNeeded, kPlanned, kNone };

  struct Entry {
    State state = State::kHome;
    tensorflow::core::WeakPtr<tensorflow::Var> var;
    tensorflow::TensorShape shape;  // of what is away
    int64_t bytes = 0;
    FarCopy far_copy;              // of the value as it is, if it is held
    PlacementRequest request;         // by which that was made
    const void* filled = nullptr;  // where it was copied to, until a kernel uses it
    int readers = 0;               // kernels that look at it now
    int64_t last_use = 0;
    tensorflow::Var* next = nullptr;  // used after it, the last time
  };

  Entry* KnowLocked(tensorflow::Var* var);
  void Forget(tensorflow::Var* var);
  // Waits until nobody moves it, and has it on the device.
  absl::Status BringHome(tensorflow::Var* var, AllocationWaitPolicy patience,
                         std::unique_lock<std::mutex>* lock);
  // Fills the variable; it is kComing, and the lock is not held.
  absl::Status Fetch(tensorflow::Var* var, Entry* entry, AllocationWaitPolicy patience);
  // Copies the value out and gives it up, if nobody looks at it and it is worth it. Answers how
  // many bytes are free then, -1 if far memory is full. The lock is not held meanwhile.
  absl::StatusOr<int64_t> GiveUp(tensorflow::Var* var, const PlacementRequest& request,
                                 std::unique_lock<std::mutex>* lock);
  // Has values leave that were used after `used_after`, those that were used last first.
  int64_t Evict(int64_t bytes, int64_t used_after);
  // Fetches what is used next. `at_once`: in the order of the host, so what a thread has to fetch
  // is left to one.
  void FetchAheadOf(tensorflow::Var* var, bool at_once);
  void HaveFetchedAheadOf(VarPtr var);
  // Whether its memory is the device's.
  bool IsHere(const tensorflow::Tensor& value) const;
  int64_t FreeBytes() const;

  DeviceAllocator* const allocator_;
  CopyEngine* const engine_;
  Worker ahead_{"tfswap_weights"};
  std::atomic<bool> on_{false};
  std::atomic<bool> planned_{false};  // a plan says what comes back when: nothing is fetched ahead
  std::atomic<bool> fetching_ahead_{false};
  std::mutex mu_;
  std::condition_variable moved_;
  // References to entries stay as they are; one goes when its variable does.
  std::unordered_map<tensorflow::Var*, Entry> entries_;
  int64_t uses_ = 0;
  tensorflow::Var* last_used_ = nullptr;
};

}  // namespace tfswap

#endif  // TFSWAP_CC_KERNELS_STREAMED_VARIABLES_H_
