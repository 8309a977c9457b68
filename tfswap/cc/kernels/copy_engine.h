#ifndef TFSWAP_CC_KERNELS_COPY_ENGINE_H_
#define TFSWAP_CC_KERNELS_COPY_ENGINE_H_

#include <array>
#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "allocator/device_allocator.h"
#include "core/memory/host_pool.h"
#include "far/far_memory.h"
#include "far/ratio_sampler.h"
#include "kernels/device_codecs.h"
#include "kernels/streamed_variables.h"
#include "kernels/worker.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"

namespace tfswap {

class CopyEngine;
class StreamCopyEngine;
class ThreadCopyEngine;

// A tensor between its swap-out and its last swap-in.
//
//            Leave()                 last reference gone
//   held ------------> leaving ------------> far ----> (freed)
//    ^  Park()+Reclaim()  |                   |
//    |                    | wanted back       | Return(): copied into a new tensor
//    +--------------------+                   v
//    Return(): handed over by reference    the consumer's tensor
//
// Of one that leaves in sections, the device's memory is given back piece by piece. From the first
// such piece on it has to leave as a whole before it comes back.
class FarBuffer : public std::enable_shared_from_this<FarBuffer> {
 public:
  enum class State { kHeld, kLeaving, kFar };

  // Of the job that this thread works for.
  FarBuffer(CopyEngine* engine, std::string label, const tensorflow::Tensor& tensor, int returns,
            int64_t next_use, PlacementRequest wish);
  ~FarBuffer();

  const std::string label;
  const tensorflow::DataType dtype;
  const tensorflow::TensorShape shape;
  const int64_t bytes;
  const PlacementRequest wish;
  const int job;

 private:
  friend class CopyEngine;
  friend class StreamCopyEngine;
  friend class ThreadCopyEngine;
  // A swap-in that waits until the buffer has left.
  struct Awaiting {
    int64_t place;
    tensorflow::OpKernelContext* context;
    std::function<void()> done;
  };

  CopyEngine* const engine_;
  // Guarded by the engine's lock.
  State state_ = State::kHeld;
  bool parked_ = false;
  tensorflow::Tensor tensor_;  // the device's copy while held or leaving
  FarCopy far_copy_;           // valid as long as it is there: tensors do not change
  int64_t given_back_ = 0;     // while leaving in sections, from the end: no longer on the device
  int returns_left_;
  int64_t next_use_;  // place of the next access in the step: what is needed last leaves first
  std::vector<Awaiting> wanted_back_;
};

using FarBufferPtr = std::shared_ptr<FarBuffer>;

// How fast copies are when nothing else runs: ns for the same bytes each way.
struct LinkTimes {
  int64_t bytes = 0;
  int64_t out_ns = 0;
  int64_t in_ns = 0;
  int64_t both_out_ns = 0;  // the two directions at once
  int64_t both_in_ns = 0;
};

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

// Moves buffers between a device and far memory: what is parked, who leaves first, and counts. How
// bytes are moved is the device's: thread_copy_engine.h for host memory, gpu/stream_copy_engine.h
// for a GPU. Never holds an executor thread.
class CopyEngine : public Reclaimer {
 public:
  // The engine of the device that `allocator` serves, never destroyed. A CPU gets its own at the
  // first call; null for a GPU that has run nothing yet.
  static CopyEngine* For(DeviceAllocator* allocator);

  using Done = std::function<void(const absl::Status&)>;

  // Copies the buffer out at once; `done` runs when the device's copy has been given up. On a GPU
  // that is before this returns, unless the buffer is to go to the file.
  virtual void Leave(const FarBufferPtr& buffer, Done done) = 0;
  // Keeps the buffer on the device as long as nobody needs the room.
  void Park(const FarBufferPtr& buffer);
  // Brings the buffer back as output 0 of `context`, then runs `done`.
  void Return(const FarBufferPtr& buffer, int64_t next_use, tensorflow::OpKernelContext* context,
              std::function<void()> done);

  // Of a job's parked tensors, those that it needs last leave first. Of several jobs' nobody can
  // say which is needed last: where anybody's may leave, it is one job's after another's.
  int64_t Reclaim(int64_t bytes, int job) final;
  int64_t BytesLeaving(int job) const final {
    return job == 0 ? bytes_leaving_.load() : jobs_[Jobs::SlotOf(job)].bytes_leaving.load();
  }
  bool IsCopyingIn() const final { return copying_in_.load() > 0; }
  bool InForce() const final { return Stats().buffers_alive > 0 || variables_.on(); }

  // Makes each copy take as long as on a link of this speed; 0 lifts that. Only where threads copy.
  virtual void EmulateLink(double bytes_per_s, int64_t latency_ns) {}
  // Measures with copies of `block_bytes`, `copies` each way. Needs two blocks on the device.
  virtual absl::StatusOr<LinkTimes> MeasureLink(int64_t block_bytes, int copies);
  void SetVerify(bool verify) { verify_.store(verify); }

  CopyStats Stats() const;
  // What was copied for a job, out and in, since the process began; for 0, as Stats() says.
  std::pair<int64_t, int64_t> BytesCopied(int job) const;
  void ClearStats();

  // The host memory behind this device.
  virtual HostPool* host_memory() = 0;
  // What went through far memory.
  virtual FarStats FarUse() = 0;
  virtual void ResetFarUse() = 0;
  // Takes the host memory that the way to the file needs, which a GPU's does, before other buffers
  // fill it; gives it back. Answers "" or what is wrong.
  virtual std::string PrepareForFile() { return ""; }
  virtual void ReleaseFromFile() {}

  // Has what passes looked at, to see what these codecs would make of it; none: no more.
  virtual void SampleCodecs(std::vector<Codec> codecs) = 0;
  // A buffer passes.
  virtual void Sample(const FarBuffer& buffer, const void* data) = 0;
  // Since then.
  virtual std::vector<CodecSample> CodecSamples() = 0;
  // Those that are the device's own work; null where the host encodes.
  virtual DeviceCodecs* codecs() { return nullptr; }

  // Values of variables, which give their memory up when no buffer can.
  StreamedVariables* variables() { return &variables_; }
  // Copies one out, by any thread: then its memory may be given up. Whether there was room for it.
  virtual absl::StatusOr<bool> CopyVariableOut(const void* data, int64_t bytes,
                                               const PlacementRequest& wish, FarCopy* copy) = 0;
  // Copies one, which left by that wish, into the memory that was made for it.
  virtual absl::Status CopyVariableIn(const FarCopy& copy, const PlacementRequest& wish,
                                      void* data) = 0;
  // A kernel is about to use one that was copied in since nobody has.
  virtual void BeforeVariableUse(const void* data) {}
  // Whether such copies are only commands to a GPU, which are given where they come up, in the
  // order of the host. Others are made by threads.
  virtual bool MovesAtOnce(FarTier tier) const { return false; }
  // Runs a move, on the thread of its direction if need be. Who waits for memory waits for what
  // leaves.
  void HaveVariableLeave(int64_t bytes, FarTier tier, std::function<void()> move);
  void HaveVariableReturn(std::function<void()> move) { in_.Schedule(0, std::move(move)); }
  virtual void DropFarCopy(FarCopy* copy) = 0;

 protected:
  // Of the device that `allocator` serves; not one of several.
  explicit CopyEngine(DeviceAllocator* allocator);

  // Counts a copy of what is no buffer.
  void CountCopy(bool out, int64_t bytes, int64_t busy_ns);
  // The thread that moves what leaves for a tier, where that is not done at once.
  virtual Worker* Leaver(FarTier tier) { return &file_out_; }
  // While it lives, something comes in.
  struct CopyingIn {
    explicit CopyingIn(CopyEngine* engine) : engine(engine) { engine->copying_in_.fetch_add(1); }
    ~CopyingIn() { engine->copying_in_.fetch_sub(1); }
    CopyEngine* const engine;
  };
  // Has a buffer leave for whose memory somebody waits, and of which there is no far copy yet. With
  // mu_ held; what is put into `given_up` is released without it.
  virtual void EvictLocked(const FarBufferPtr& buffer,
                           std::vector<tensorflow::Tensor>* given_up) = 0;
  // A buffer begins to leave on a thread: `copy_out` ends with EndLeaving(). With mu_ held.
  void StartLeavingLocked(FarBuffer* buffer, Worker* worker, std::function<void()> copy_out);
  // `far_copy` has all of it, or is not held: then the buffer stays. If it was wanted back
  // meanwhile it stays too, and goes to who wanted it.
  void EndLeaving(FarBuffer* buffer, FarCopy far_copy, const absl::Status& status, int64_t busy_ns);
  // A buffer that leaves on a thread is far from there on: gives that memory back, if nobody else
  // has the tensor (`references` are the engine's and its caller's) or wants it meanwhile.
  void ReleaseEnd(FarBuffer* buffer, int64_t kept_bytes, int references);
  // The far copy is all that is left. With mu_ held.
  void SetFarLocked(FarBuffer* buffer, std::vector<tensorflow::Tensor>* given_up);
  // Copies a far buffer into the tensor that was made for it. Whether it was filled, or failed:
  // false if the tensor has paid for its beginning only (KernelScope::pays) and could not go on.
  virtual bool Fill(tensorflow::Tensor* output, const FarBufferPtr& buffer,
                    absl::Status* status) = 0;
  // What a tensor that will be filled in sections has to pay for at first; 0: it comes whole.
  virtual int64_t FirstSection(const FarBuffer& buffer) const { return 0; }
  // Whether Fill() of a far buffer only gives commands: then it is called where the swap-in runs,
  // and a thread is taken only to wait for memory.
  virtual bool FillsAtOnce(const FarBuffer& buffer) const { return false; }
  // Counts a copy in, and gives up the far copy if nobody will want it again.
  void Filled(FarBuffer* buffer, int64_t busy_ns);
  // The thread that is to fill a buffer which comes back, for a reader at `place`. What a plan
  // brings back from the file only waits for it; what lazy swaps do goes one after the other,
  // wherever it comes from: so none takes the memory that an earlier one needs.
  Worker* FillerOf(const FarBuffer& buffer, int64_t place);
  void UnparkLocked(FarBuffer* buffer);
  void ParkLocked(FarBuffer* buffer);
  absl::Status Failed(const char* doing, const FarBuffer& buffer, const std::string& why) const;
  static constexpr char kOtherChecksum[] = "its checksum differs from the one taken when it left";
  absl::Status Changed(const FarBuffer& buffer, const std::string& why) const;
  static absl::Status VariableFailed(const char* doing, const std::string& why);
  static absl::Status VariableChanged(int64_t bytes, const std::string& why);

  DeviceAllocator* const allocator_;
  Worker in_{"tfswap_in"};
  Worker file_out_{"tfswap_file_out"};
  Worker file_in_{"tfswap_file_in"};
  mutable std::mutex mu_;
  CopyStats stats_;
  std::atomic<bool> verify_{false};

 private:
  friend class FarBuffer;

  int64_t ReclaimParked(int64_t bytes, int job);
  void ChooseParkedLocked(int64_t bytes, size_t slot, int64_t* started,
                          std::vector<FarBufferPtr>* chosen);
  void AddLeaving(const FarBuffer& buffer, int64_t bytes);
  // How a swap-in gets memory: at once or not at all; whenever there is some, all of it or section
  // by section.
  enum class Manner { kNow, kWhole, kInSections };
  // Allocates and fills the swap-in's output. Whether it is done with: if not, there was no memory,
  // and it comes `kNow`, another buffer is needed sooner, or sections stood in each other's way.
  bool Fetch(const FarBufferPtr& buffer, int64_t place, Manner manner,
             tensorflow::OpKernelContext* context);
  void FetchLater(const FarBufferPtr& buffer, int64_t place, Manner manner,
                  tensorflow::OpKernelContext* context, std::function<void()> done);

  StreamedVariables variables_;
  std::atomic<int64_t> bytes_leaving_{0};
  std::atomic<int> copying_in_{0};
  struct OfJob {
    // Parked buffers by next use; the last is the first to go.
    std::set<std::pair<int64_t, FarBuffer*>> parked;
    int64_t bytes_out = 0;
    int64_t bytes_in = 0;
    // Fills what comes back, which may have to wait for memory: for the job's own. Made when it is
    // first needed.
    std::unique_ptr<Worker> in;
    std::atomic<int64_t> bytes_leaving{0};
  };
  std::array<OfJob, Jobs::kMost> jobs_;  // by slot
};

}  // namespace tfswap

#endif  // TFSWAP_CC_KERNELS_COPY_ENGINE_H_
