#ifndef TFSWAP_CC_ALLOCATOR_JOBS_H_
#define TFSWAP_CC_ALLOCATOR_JOBS_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>

#include "tensorflow/core/framework/op_kernel.h"

namespace tfswap {

// Trainings that run at once and share a device, and which of them an op runs for.
//
// A job is a number above 0 that is never used again. 0 is everybody: a training that has the
// device for itself, and what cannot be told to be one job's (input pipelines, models that are
// built before their training begins). As long as there are no jobs, nobody asks.
//
//   the pass marks a node with its plan's label ─▶ the label is a job's ─▶ so is the op's step,
//   and with it the ops of that step that have no mark; ops outside of steps are their thread's
class Jobs {
 public:
  // At once. Jobs whose numbers differ by a multiple of it may not be there at the same time.
  static constexpr int kMost = 16;
  static size_t SlotOf(int job) { return static_cast<size_t>(job) % kMost; }

  // Those of the process.
  static Jobs* Get();

  bool any() const { return count_.load(std::memory_order_relaxed) > 0; }
  void Begin(int job);
  void End(int job);
  // Whether there is such a job now.
  bool Has(int job) const {
    return job > 0 && slots_[SlotOf(job)].load(std::memory_order_acquire) == job;
  }
  // Graphs that were optimised under this label are the job's from now on; 0: nobody's.
  void SetLabel(const std::string& label, int job);

  // The job that a kernel runs for, 0 if that is not known.
  int Of(const tensorflow::OpKernel& kernel, int64_t step_id);
  // Of what this thread does: of the kernel that it runs, else as it was told.
  static int Current();
  // Likewise, but between two kernels: of the one that it ran last, whose inputs it lets go.
  static int Latest();
  static void SetThreads(int job);

 private:
  int OfLabel(const tensorflow::OpKernel& kernel);
  int OfStep(int64_t step_id, int labelled);

  std::atomic<int> count_{0};
  std::atomic<int64_t> changes_{0};  // what threads remember is good until the next one
  std::array<std::atomic<int>, kMost> slots_ = {};
  std::mutex mu_;
  std::unordered_map<std::string, int> labels_;
  // The newest steps that ops with a label were met in.
  static constexpr size_t kSteps = 64;
  std::array<std::pair<int64_t, int>, kSteps> steps_ = {};
  size_t next_step_ = 0;
};

}  // namespace tfswap

#endif  // TFSWAP_CC_ALLOCATOR_JOBS_H_
