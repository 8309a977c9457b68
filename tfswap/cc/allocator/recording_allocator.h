#ifndef TFSWAP_CC_ALLOCATOR_RECORDING_ALLOCATOR_H_
#define TFSWAP_CC_ALLOCATOR_RECORDING_ALLOCATOR_H_

#include <atomic>
#include <mutex>
#include <string>
#include <unordered_set>
#include <vector>

#include "allocator/adaptor.h"
#include "allocator/step_recorder.h"
#include "core/memory/address_table.h"

namespace tfswap {

// An allocated block and the op that requested it.
struct Holder {
  std::string op;  // "": made outside of any op
  const char* kind;
  int64_t bytes;
  int64_t step_id;
};

// Lists the allocated blocks and their ops, and records traces while its recorder is on. Blocks
// below kListedBytes are neither listed nor recorded.
class RecordingAllocator : public Adaptor {
 public:
  static constexpr int64_t kListedBytes = 1024;

  explicit RecordingAllocator(tensorflow::Allocator* next);

  using Adaptor::AllocateRaw;
  void* AllocateRaw(size_t alignment, size_t num_bytes,
                    const tensorflow::AllocationAttributes& attributes) override;
  void DeallocateRaw(void* ptr) override;
  int64_t AllocationId(const void* ptr) const override;

  // Return whether the block is listed.
  bool Lists(const void* ptr) const { return blocks_.Get(ptr, Block()).bytes > 0; }
  std::vector<Holder> Holders() const;
  StepRecorder* recorder() { return &recorder_; }
  // `load_bytes`: the sum of all blocks, including small ones. `host_times`: record host times even
  // on a GPU.
  void StartRecording(int64_t load_bytes, bool host_times);
  StepTrace StopRecording() { return recorder_.Stop(); }

 private:
  struct Block {
    const std::string* op = nullptr;
    int64_t bytes = 0;
    int64_t step_id = 0;
    int64_t id = 0;
    BufferKind kind = BufferKind::kOther;
  };
  const std::string* NameOf(absl::string_view op);

  const int64_t number_;  // unique in the process
  AddressTable<Block> blocks_;
  std::atomic<int64_t> next_id_{1};
  std::mutex names_mu_;
  std::unordered_set<std::string> names_;
  StepRecorder recorder_;
};

}  // namespace tfswap

#endif  // TFSWAP_CC_ALLOCATOR_RECORDING_ALLOCATOR_H_
