#ifndef TFSWAP_KERNELS_COPY_ENGINE_H_
#define TFSWAP_KERNELS_COPY_ENGINE_H_

#include <atomic>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "allocator/device_allocator.h"
#include "core/host_pool.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"

namespace tfswap {

class CopyEngine;

// A tensor between its swap-out and its last swap-in.
//
//            Leave()                 last reference gone
//   held ------------> leaving ------------> far ----> (freed)
//    ^  Park()+Reclaim()  |                   |
//    |                    | wanted back       | Return(): copied into a new tensor
//    +--------------------+                   v
//    Return(): handed over by reference    the consumer's tensor
class FarBuffer : public std::enable_shared_from_this<FarBuffer> {
 public:
  enum class State { kHeld, kLeaving, kFar };

  FarBuffer(CopyEngine* engine, std::string label, const tensorflow::Tensor& tensor, int returns,
            int64_t next_use);
  ~FarBuffer();

  const std::string label;
  const tensorflow::DataType dtype;
  const tensorflow::TensorShape shape;
  const int64_t bytes;

 private:
  friend class CopyEngine;
  using Continuation = std::function<void(const absl::Status&, const tensorflow::Tensor&)>;

  CopyEngine* const engine_;
  // Guarded by the engine's lock.
  State state_ = State::kHeld;
  bool parked_ = false;
  tensorflow::Tensor tensor_;  // the device's copy while held or leaving
  void* far_copy_ = nullptr;   // valid as long as it is there: tensors do not change
  uint64_t checksum_ = 0;
  int returns_left_;
  int64_t next_use_;  // place of the next access in the step: what is needed last leaves first
  std::vector<Continuation> wanted_back_;
};

using FarBufferPtr = std::shared_ptr<FarBuffer>;

struct CopyStats {
  int64_t bytes_out = 0;
  int64_t bytes_in = 0;
  int64_t copies_out = 0;
  int64_t copies_in = 0;
  int64_t copies_declined = 0;  // swap-outs that found no far memory and stayed on the device
  int64_t buffers_alive = 0;
  int64_t busy_out_ns = 0;
  int64_t busy_in_ns = 0;
};

// Moves buffers between a device and far memory on threads of its own, one a direction. What a plan
// moves goes first come first served, and before lazy swap-ins, which go by the place of their
// readers in the step. Never holds an executor thread.
class CopyEngine : public Reclaimer {
 public:
  // The engine of the device that `allocator` serves; made at the first call, never destroyed.
  static CopyEngine* For(DeviceAllocator* allocator);

  using Done = std::function<void(const absl::Status&)>;

  // Copies the buffer out at once; `done` runs when the device's copy has been given up.
  void Leave(const FarBufferPtr& buffer, Done done);
  // Keeps the buffer on the device as long as nobody needs the room.
  void Park(const FarBufferPtr& buffer);
  // Brings the buffer back as output 0 of `context`, then runs `done`.
  void Return(const FarBufferPtr& buffer, int64_t next_use, tensorflow::OpKernelContext* context,
              std::function<void()> done);

  int64_t Reclaim(int64_t bytes) override;
  int64_t BytesLeaving() const override { return bytes_leaving_.load(); }
  bool IsCopyingIn() const override { return copying_in_.load() > 0; }
  bool InForce() const override { return Stats().buffers_alive > 0; }
  std::string Hindrance() const override;

  // Makes each copy take as long as on a link of this speed; 0 lifts that.
  void EmulateLink(double bytes_per_s, int64_t latency_ns);
  void SetVerify(bool verify) { verify_.store(verify); }
  // The next copies fail, for tests: "out", "in", "corrupt" or "" for none.
  void InjectFault(std::string kind);

  CopyStats Stats() const;
  void ClearStats();

  // Far memory is one for all devices.
  static HostPool* host_pool();

 private:
  friend class FarBuffer;

  // A thread and its queue: smaller places first, equal ones in the order of their coming.
  class Worker {
   public:
    explicit Worker(const char* name);
    void Schedule(int64_t place, std::function<void()> job);
    // Is there a job that goes before `place`?
    bool HasBefore(int64_t place);

   private:
    std::mutex mu_;
    std::condition_variable wake_;
    std::multimap<int64_t, std::function<void()>> jobs_;
  };

  explicit CopyEngine(DeviceAllocator* allocator);

  void StartLeaving(const FarBufferPtr& buffer, Done done);
  void CopyOut(const FarBufferPtr& buffer, const Done& done);
  void StartReturning(const FarBufferPtr& buffer, int64_t place,
                      tensorflow::OpKernelContext* context, std::function<void()> done);
  // Whether it happened: a job that has no memory gives way to one that is needed sooner.
  bool CopyIn(const FarBufferPtr& buffer, int64_t place, tensorflow::OpKernelContext* context);
  absl::Status Fill(tensorflow::Tensor* output, const FarBufferPtr& buffer);
  bool TakeFault(const char* kind);
  void UnparkLocked(FarBuffer* buffer);
  void ParkLocked(FarBuffer* buffer);
  void HoldForLink(int64_t start_ns, int64_t bytes) const;

  DeviceAllocator* const allocator_;
  Worker out_;
  Worker in_;

  mutable std::mutex mu_;
  // Parked buffers by next use; the last is the first to go.
  std::set<std::pair<int64_t, FarBuffer*>> parked_;
  CopyStats stats_;
  std::string fault_;

  std::atomic<int64_t> bytes_leaving_{0};
  std::atomic<int> copying_in_{0};
  std::atomic<bool> far_memory_full_{false};
  std::atomic<bool> verify_{false};
  std::atomic<double> link_ns_per_byte_{0};
  std::atomic<int64_t> link_latency_ns_{0};
};

}  // namespace tfswap

#endif  // TFSWAP_KERNELS_COPY_ENGINE_H_
