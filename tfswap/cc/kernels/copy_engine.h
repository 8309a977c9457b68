#ifndef TFSWAP_CC_KERNELS_COPY_ENGINE_H_
#define TFSWAP_CC_KERNELS_COPY_ENGINE_H_

#include <atomic>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <unordered_map>
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
//           SwapOut()               last reference gone
//  held ------------> leaving ------------> far ----> (freed)
//   ^ MakeEvictable()    |                   |
//   |  + Reclaim()       | SwapIn()          | SwapIn(): copied into a new tensor
//   +--------------------+                   v
//   SwapIn(): handed over by reference    the consumer's tensor
//
// If a buffer is copied out in chunks, its device memory is released chunk by chunk. After the
// first release it has to be copied out completely before it comes back.
class FarBuffer : public std::enable_shared_from_this<FarBuffer> {
 public:
  enum class State { kHeld, kLeaving, kFar };

  FarBuffer(CopyEngine* engine, std::string label, const tensorflow::Tensor& tensor, int returns,
            int64_t next_use, PlacementRequest request);
  ~FarBuffer();

  const std::string label;
  const tensorflow::DataType dtype;
  const tensorflow::TensorShape shape;
  const int64_t bytes;
  const PlacementRequest request;

 private:
  friend class CopyEngine;
  friend class StreamCopyEngine;
  friend class ThreadCopyEngine;
  // A swap-in that waits for the end of the swap-out.
  struct WaitingSwapIn {
    int64_t place;
    tensorflow::OpKernelContext* context;
    std::function<void()> done;
    bool by_kernel;  // by SwapInByKernel(), which restores it if it became far
  };

  CopyEngine* const engine_;
  // Guarded by the engine's lock.
  State state_ = State::kHeld;
  bool evictable_ = false;
  tensorflow::Tensor tensor_;   // the device copy while held or leaving
  FarCopy far_copy_;            // stays valid because tensors are immutable
  int64_t released_bytes_ = 0;  // while copied out in chunks: bytes released from the end
  int returns_left_;
  int64_t next_use_;  // place of the next access in the step
  // Of an element of lists only.
  int64_t element_ = 0;                   // its number, from 1 on
  const void* element_memory_ = nullptr;  // its key in `elements_`
  int64_t later_use_ = 0;                 // place of the access after that
  std::vector<WaitingSwapIn> waiting_swap_ins_;
};

using FarBufferPtr = std::shared_ptr<FarBuffer>;

// The times of copies of equal bytes in each direction while nothing else runs.
struct LinkTimes {
  int64_t bytes = 0;
  int64_t out_ns = 0;
  int64_t in_ns = 0;
  int64_t both_out_ns = 0;  // both directions concurrently
  int64_t both_in_ns = 0;
};

struct CopyStats {
  int64_t bytes_out = 0;
  int64_t bytes_in = 0;
  int64_t copies_out = 0;
  int64_t copies_in = 0;
  int64_t copies_declined = 0;  // swap-outs that stayed on the device because far memory was full
  int64_t buffers_alive = 0;
  int64_t busy_out_ns = 0;
  int64_t busy_in_ns = 0;
};

// Moves buffers between a device and far memory, and decides which buffers to evict (Belady's rule:
// latest next use first). Subclasses implement the copies: thread_copy_engine.h for CPUs,
// gpu/stream_copy_engine.h for GPUs. What a plan moves never blocks an executor thread.
class CopyEngine : public Reclaimer {
 public:
  // Return the engine of the device of `allocator`, which is never destroyed. It is created on the
  // first call for a CPU; null for a GPU that has not run an op yet, or whose engine could not be
  // made (SetProblem).
  static CopyEngine* For(DeviceAllocator* allocator);
  // Note why there is no engine for this device; ProblemOf() returns it, or OK.
  static void SetProblem(DeviceAllocator* allocator, const absl::Status& problem);
  static absl::Status ProblemOf(DeviceAllocator* allocator);

  using Done = std::function<void(const absl::Status&)>;

  // Copy the buffer out; `done` runs when the device copy has been released. On a GPU that is
  // before this function returns, unless the buffer goes to the file.
  virtual void SwapOut(const FarBufferPtr& buffer, Done done) = 0;
  // Keep the buffer on the device until its memory is needed.
  void MakeEvictable(const FarBufferPtr& buffer);
  // Return the evictable buffer of an element of a list, for any number of swap-ins. Lists that
  // have the same tensor share a buffer: two of them would keep each other from leaving.
  FarBufferPtr HoldElement(std::string label, const tensorflow::Tensor& tensor, int64_t next_use);
  // Copy an element into `output`, which has its size, wherever it is. Return whether that is
  // possible now: not while it leaves in chunks.
  bool ReadElement(const FarBufferPtr& buffer, tensorflow::Tensor* output, absl::Status* status);
  // Restore the buffer as output 0 of `context`, then run `done`.
  void SwapIn(const FarBufferPtr& buffer, int64_t next_use, tensorflow::OpKernelContext* context,
              std::function<void()> done);
  // The same on this thread, which waits for memory as any kernel does. For a device on the host.
  void SwapInByKernel(const FarBufferPtr& buffer, int64_t next_use,
                      tensorflow::OpKernelContext* context);

  // Evict the evictable buffers with the latest next use first.
  int64_t Reclaim(int64_t bytes) final;
  int64_t BytesLeaving() const final { return bytes_leaving_.load(); }
  bool IsCopyingIn() const final { return copying_in_.load() > 0; }
  bool IsSwapping() const final { return Stats().buffers_alive > 0 || variables_.on(); }

  // Make each copy take as long as on a link of this speed; 0 disables that. For copies by threads
  // only.
  virtual void EmulateLink(double bytes_per_s, int64_t latency_ns) {}
  // Measure the link with `copies` copies of `block_bytes` per direction. Needs two blocks on the
  // device.
  virtual absl::StatusOr<LinkTimes> MeasureLink(int64_t block_bytes, int copies);
  void SetVerify(bool verify) { verify_.store(verify); }

  CopyStats Stats() const;
  void ClearStats();

  // The host memory for far copies of this device.
  virtual HostPool* host_memory() = 0;
  // Statistics of far memory.
  virtual FarStats FarUse() = 0;
  virtual void ResetFarUse() = 0;
  // Allocate the host memory that copies to the file need on a GPU, before buffers fill it, and
  // release it. Return "" or an error message.
  virtual std::string PrepareForFile() { return ""; }
  virtual void ReleaseFromFile() {}

  // Measure these codecs on the buffers that are copied out; none disables that.
  virtual void SampleCodecs(std::vector<Codec> codecs) = 0;
  // Measure one buffer.
  virtual void Sample(const FarBuffer& buffer, const void* data) = 0;
  // Return the results.
  virtual std::vector<CodecSample> CodecSamples() = 0;
  // The codecs that run on the device; null if the host encodes.
  virtual DeviceCodecs* codecs() { return nullptr; }

  // Values of variables, which are evicted when no buffer can be.
  StreamedVariables* variables() { return &variables_; }
  // Copy a value out, on any thread, so that its memory can be released. Return whether there was
  // space.
  virtual absl::StatusOr<bool> CopyVariableOut(const void* data, int64_t bytes,
                                               const PlacementRequest& request, FarCopy* copy) = 0;
  // Copy a value that was swapped out with this request into new memory.
  virtual absl::Status CopyVariableIn(const FarCopy& copy, const PlacementRequest& request,
                                      void* data) = 0;
  // Copy rows of a value that was swapped out, unless it is encoded. For a device on the host only.
  virtual absl::Status CopyVariableRowsIn(const FarCopy& copy, int64_t row_bytes,
                                          const std::vector<int64_t>& rows, char* output) {
    return absl::UnimplementedError("tfswap: rows are gathered on a CPU only");
  }
  // Call this before the first kernel that uses a value after its copy-in.
  virtual void BeforeVariableUse(const void* data) {}
  // Return whether such copies are GPU commands, which are enqueued in host order. Others are made
  // by threads.
  virtual bool MovesAtOnce(FarTier tier) const { return false; }
  // Run a copy, on the thread of its direction if necessary. Its bytes count as leaving for waiting
  // allocations.
  void ScheduleVariableSwapOut(int64_t bytes, FarTier tier, std::function<void()> move);
  void ScheduleVariableSwapIn(std::function<void()> move) { in_.Schedule(0, std::move(move)); }
  virtual void DropFarCopy(FarCopy* copy) = 0;

 protected:
  // For the device of `allocator`; one engine per device.
  explicit CopyEngine(DeviceAllocator* allocator);

  // Count a copy of a value that is not a buffer.
  void CountCopy(bool out, int64_t bytes, int64_t busy_ns);
  // The thread that copies out to a tier, unless the copy is a GPU command.
  virtual Worker* Leaver(FarTier tier) { return &file_out_; }
  // Counts a running copy-in during its lifetime.
  struct CopyingIn {
    explicit CopyingIn(CopyEngine* engine) : engine(engine) { engine->copying_in_.fetch_add(1); }
    ~CopyingIn() { engine->copying_in_.fetch_sub(1); }
    CopyEngine* const engine;
  };
  // What is left to do, without mu_, for buffers that are evicted.
  struct Evicted {
    std::vector<tensorflow::Tensor> given_up;
    std::vector<FarBufferPtr> to_copy;  // by CopyEvicted()
  };
  // Swap out a buffer without a far copy because an allocation waits for its memory. Call with mu_
  // held.
  virtual void EvictLocked(const FarBufferPtr& buffer, Evicted* evicted) = 0;
  virtual void CopyEvicted(const FarBufferPtr& buffer) {}
  // Begin a swap-out, which must end with EndSwapOut(). Call with mu_ held.
  void SetLeavingLocked(FarBuffer* buffer);
  // Start a swap-out on a thread; `copy_out` must end with EndSwapOut(). Call with mu_ held.
  void StartSwapOutLocked(FarBuffer* buffer, Worker* worker, std::function<void()> copy_out);
  // End a swap-out. If `far_copy` is not held, or if a swap-in waits for the buffer, the buffer
  // stays on the device and is handed to the swap-in.
  void EndSwapOut(FarBuffer* buffer, FarCopy far_copy, const absl::Status& status, int64_t busy_ns);
  // Release the device memory from `kept_bytes` on during a swap-out, unless another reference to
  // the tensor exists (`references` are those of the engine and its caller) or a swap-in waits.
  void ReleaseEnd(FarBuffer* buffer, int64_t kept_bytes, int references);
  // Release the device copy. Call with mu_ held.
  void SetFarLocked(FarBuffer* buffer, std::vector<tensorflow::Tensor>* given_up);
  // Copy a far buffer into `output`. Return false if the tensor is committed only partly
  // (KernelScope::pays) and the rest could not be committed; true if it was filled or failed.
  virtual bool Fill(tensorflow::Tensor* output, const FarBufferPtr& buffer,
                    absl::Status* status) = 0;
  // Return the bytes to commit before a chunked fill starts; 0 if the buffer is filled as a whole.
  virtual int64_t FirstChunk(const FarBuffer& buffer) const { return 0; }
  // Return whether Fill() only enqueues commands. It is then called by the swap-in op, and a thread
  // is used only to wait for memory.
  virtual bool FillsAtOnce(const FarBuffer& buffer) const { return false; }
  // Let a recording know what happens to an element of a list.
  void Record(const FarBuffer& buffer, StepRecorder::ElementEvent event,
              const tensorflow::Tensor& tensor) const;
  // Count a copy-in, and release the far copy after the last one.
  void Filled(FarBuffer* buffer, int64_t busy_ns);
  // The thread that fills a buffer for a reader at `place`. Planned swap-ins from the file have
  // their own thread, which mostly waits; on-demand swap-ins run one after the other, so that none
  // takes memory that an earlier one needs.
  Worker* SwapInWorker(const FarBuffer& buffer, int64_t place);
  void RemoveEvictableLocked(FarBuffer* buffer);
  void MakeEvictableLocked(FarBuffer* buffer);
  // Change the place of the next access; return the one before.
  int64_t SetNextUseLocked(FarBuffer* buffer, int64_t next_use);
  absl::Status Failed(const char* doing, const FarBuffer& buffer, const std::string& why) const;
  static constexpr char kChecksumDiffers[] = "its checksum differs from that of the swap-out";
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

  int64_t ReclaimBuffers(int64_t bytes);
  // Begin a swap-in, and set its place. Return whether the buffer is far, so that the caller has to
  // restore it; otherwise it is handed over now, or when it has stopped leaving.
  bool MustRestore(const FarBufferPtr& buffer, int64_t next_use, FarBuffer::WaitingSwapIn* swap_in);
  // How a swap-in gets memory: only if it is available now; waiting for all of it; or waiting chunk
  // by chunk.
  enum class Manner { kNow, kWhole, kInChunks };
  // Allocate and fill the output of a swap-in. Return false to try again later: the allocation gave
  // way, or chunked fills blocked each other.
  bool Restore(const FarBufferPtr& buffer, tensorflow::OpKernelContext* context);
  // The same for a planned swap-in. It gives way if there is no memory for `kNow`, or if another
  // buffer is needed sooner.
  bool Fetch(const FarBufferPtr& buffer, int64_t place, Manner manner,
             tensorflow::OpKernelContext* context);
  void FetchLater(const FarBufferPtr& buffer, int64_t place, Manner manner,
                  tensorflow::OpKernelContext* context, std::function<void()> done);

  StreamedVariables variables_;
  std::atomic<int64_t> bytes_leaving_{0};
  std::atomic<int> copying_in_{0};
  // Evictable buffers by next use; the last one is evicted first.
  std::set<std::pair<int64_t, FarBuffer*>> evictable_;
  std::condition_variable handed_over_;  // to a SwapInByKernel()
  int64_t elements_made_ = 0;
  // Elements of lists by their memory; an entry is valid as long as the element still holds it.
  std::unordered_map<const void*, FarBuffer*> elements_;
};

}  // namespace tfswap

#endif  // TFSWAP_CC_KERNELS_COPY_ENGINE_H_
