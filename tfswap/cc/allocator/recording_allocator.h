#ifndef TFSWAP_ALLOCATOR_RECORDING_ALLOCATOR_H_
#define TFSWAP_ALLOCATOR_RECORDING_ALLOCATOR_H_

#include <mutex>
#include <string>
#include <unordered_set>
#include <vector>

#include "allocator/adaptor.h"
#include "allocator/step_recorder.h"

namespace tfswap {

// A block that is there, and the op that asked for it.
struct Holder {
  std::string op;  // "": made outside of any op
  const char* kind;
  int64_t bytes;
  int64_t step_id;
};

// Knows who holds what, and writes a trace while its recorder is on. Blocks below kListedBytes are
// neither listed nor traced.
class RecordingAllocator : public SizedAdaptor {
 public:
  static constexpr int64_t kListedBytes = 4096;
  static constexpr int64_t kHeaderBytes = 64;  // that each block has in front

  explicit RecordingAllocator(tensorflow::Allocator* next) : SizedAdaptor(next) {}

  using SizedAdaptor::AllocateRaw;
  void* AllocateRaw(size_t alignment, size_t num_bytes,
                    const tensorflow::AllocationAttributes& attributes) override;
  void DeallocateRaw(void* ptr) override;
  size_t RequestedSize(const void* ptr) const override;
  int64_t AllocationId(const void* ptr) const override;

  std::vector<Holder> Holders();
  StepRecorder* recorder() { return &recorder_; }
  // `load_bytes`: of all blocks there are, the small ones included.
  void StartRecording(int64_t load_bytes);
  StepTrace StopRecording() { return recorder_.Stop(); }

 private:
  struct Header;
  static Header* HeaderOf(const void* ptr);

  std::mutex mu_;  // guards all but the recorder
  Header* blocks_ = nullptr;
  int64_t next_id_ = 1;
  std::unordered_set<std::string> names_;
  StepRecorder recorder_;
};

}  // namespace tfswap

#endif  // TFSWAP_ALLOCATOR_RECORDING_ALLOCATOR_H_
