#ifndef TFSWAP_CC_GPU_STREAM_FILE_TIER_H_
#define TFSWAP_CC_GPU_STREAM_FILE_TIER_H_

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "core/gpu/hazard_tracker.h"
#include "core/memory/host_pool.h"
#include "far/far_file.h"
#include "gpu/cuda_gpu.h"

namespace tfswap {

// The way between a GPU's memory and the file: piece by piece, through two pinned blocks a
// direction in turn, so that the GPU copies one piece while the disk has the other.
//
//   GPU   | copy 0 | copy 1 |         | copy 2 |
//   disk            |----- write 0 ----|----- write 1 ----|----- write 2 ----|
//
// Its callers wait, for the disk and for copies; nothing that the GPU is given waits for the disk.
// One buffer at a time goes each way. Thread-safe.
class StreamFileTier {
 public:
  StreamFileTier(CudaCard* gpu, HazardTracker* tracker, HostPool* pool)
      : gpu_(gpu), tracker_(tracker), pool_(pool) {}

  // Takes the pinned blocks, if they are not there. Answers "" or why there are none.
  std::string Prepare();
  // Gives them back when nobody uses them any more.
  void Release();
  // Whether there are a file and the way to it.
  bool IsReady() { return FarFile::Get()->IsOpen() && Blocks() != nullptr; }

  // Returns when all is written. Answers "" or what went wrong; adds to `disk_ns` how long the disk
  // took.
  std::string CopyOut(const HazardTracker::PiecewiseMove& whole, int64_t bytes, SpillFile* file,
                      int64_t offset, int64_t* disk_ns);
  // Returns when the GPU has been given the last piece: compute that reads the block waits for it
  // there. Nobody may use the block if something went wrong.
  std::string CopyIn(const FileExtent& extent, void* block, int64_t bytes, int64_t* disk_ns);

 private:
  // One direction's.
  struct Pair {
    std::mutex mu;  // of who moves a buffer
    std::array<char*, 2> blocks = {};
  };
  class PinnedBlocks;

  // Those that there are, else some that are taken now; null if there is no room.
  std::shared_ptr<PinnedBlocks> Blocks();
  std::string NoRoom() const;
  // Until no copy touches the host memory. Whether the GPU is all right.
  bool WaitForCard(const void* host, int64_t bytes);
  std::string GpuFailed() const { return std::string(gpu_->status().message()); }

  CudaCard* const gpu_;
  HazardTracker* const tracker_;
  HostPool* const pool_;
  std::mutex mu_;
  std::shared_ptr<PinnedBlocks> blocks_;  // guarded by mu_
};

}  // namespace tfswap

#endif  // TFSWAP_CC_GPU_STREAM_FILE_TIER_H_
