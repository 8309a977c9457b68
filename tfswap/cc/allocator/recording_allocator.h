#ifndef TFSWAP_CC_ALLOCATOR_RECORDING_ALLOCATOR_H_
#define TFSWAP_CC_ALLOCATOR_RECORDING_ALLOCATOR_H_

#include <array>
#include <atomic>
#include <functional>
#include <mutex>
#include <string>
#include <unordered_set>
#include <vector>

#include "allocator/adaptor.h"
#include "allocator/jobs.h"
#include "allocator/step_recorder.h"
#include "core/memory/address_table.h"

namespace tfswap {

// A block that is there, and the op that asked for it.
struct Holder {
  std::string op;  // "": made outside of any op
  const char* kind;
  int64_t bytes;
  int64_t step_id;
};

// Knows who holds what, and writes traces while its recorders are on. Blocks below kListedBytes are
// neither listed nor traced. Each job (jobs.h) has a recorder of its own, which sees what is the
// job's and what is everybody's; that of 0 sees everything.
class RecordingAllocator : public Adaptor {
 public:
  static constexpr int64_t kListedBytes = 4096;

  explicit RecordingAllocator(tensorflow::Allocator* next);

  using Adaptor::AllocateRaw;
  void* AllocateRaw(size_t alignment, size_t num_bytes,
                    const tensorflow::AllocationAttributes& attributes) override;
  void DeallocateRaw(void* ptr) override;
  int64_t AllocationId(const void* ptr) const override;

  // Whether it is a block of its own, and not of the small ones.
  bool Lists(const void* ptr) const { return blocks_.Get(ptr, Block()).bytes > 0; }
  // All that it lists; none of them is freed meanwhile.
  void ForEach(const std::function<void(const void*)>& visit) const;
  // A job's and everybody's; of 0, all.
  std::vector<Holder> Holders(int job = 0);
  StepRecorder* recorder(int job = 0) { return &recorders_[Jobs::SlotOf(job)]; }
  // Whether anything is recorded.
  bool on() const { return on_.load(std::memory_order_relaxed) != 0; }
  // `load_bytes`: of all blocks there are, the small ones included. `host_times`: even of a GPU.
  void StartRecording(int64_t load_bytes, bool host_times, int job = 0);
  StepTrace StopRecording(int job = 0);

 private:
  struct Block {
    const std::string* op = nullptr;
    int64_t bytes = 0;
    int64_t step_id = 0;
    int64_t id = 0;
    BufferKind kind = BufferKind::kOther;
    int job = 0;
  };
  static bool Concerns(const Block& block, int job) {
    return job == 0 || block.job == job || !Jobs::Get()->Has(block.job);
  }
  // Calls `tell` with the recorders that are on and whom a block concerns.
  template <typename Tell>
  void TellRecorders(const Block& block, Tell tell);
  const std::string* NameOf(absl::string_view op);

  const int64_t number_;  // no other one of the process has it
  AddressTable<Block> blocks_;
  std::atomic<int64_t> next_id_{1};
  std::mutex names_mu_;
  std::unordered_set<std::string> names_;
  std::array<StepRecorder, Jobs::kMost> recorders_;
  std::array<std::atomic<int>, Jobs::kMost> recorded_jobs_ = {};
  std::atomic<uint32_t> on_{0};  // of the recorders, a bit each
};

}  // namespace tfswap

#endif  // TFSWAP_CC_ALLOCATOR_RECORDING_ALLOCATOR_H_
