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

// Copies between a GPU and the file: piece by piece through two pinned blocks per direction, so
// that the GPU copies one piece while the disk transfers the other.
//
//   GPU   | copy 0 | copy 1 |         | copy 2 |
//   disk            |----- write 0 ----|----- write 1 ----|----- write 2 ----|
//
// Callers block for the disk and for copies; no GPU command waits for the disk. One buffer at a
// time per direction. Thread-safe.
class StreamFileTier {
 public:
  StreamFileTier(CudaGpu* gpu, HazardTracker* tracker, HostPool* pool)
      : gpu_(gpu), tracker_(tracker), pool_(pool) {}

  // Allocate the pinned blocks unless they exist. Return "" or why that failed.
  std::string Prepare();
  // Free the blocks as soon as they are unused.
  void Release();
  // Return whether the file and the pinned blocks are available.
  bool IsReady() { return FarFile::Get()->IsOpen() && Blocks() != nullptr; }

  // Block until all is written. Return an error message or ""; add the time of the disk to
  // `disk_ns`.
  std::string CopyOut(const HazardTracker::PiecewiseMove& whole, int64_t bytes, SpillFile* file,
                      int64_t offset, int64_t* disk_ns);
  // Block until the last piece has been enqueued; compute that reads the block waits for it on the
  // GPU. After an error the block must not be used.
  std::string CopyIn(const FileExtent& extent, void* block, int64_t bytes, int64_t* disk_ns);

 private:
  // The blocks of one direction.
  struct Pair {
    std::mutex mu;  // held while a buffer is copied
    std::array<char*, 2> blocks = {};
  };
  class PinnedBlocks;

  // Return the existing blocks or new ones; null if there is no memory.
  std::shared_ptr<PinnedBlocks> Blocks();
  std::string OutOfPinnedMemory() const;
  // Block until no copy accesses the host memory; return false if the GPU has failed.
  bool WaitForGpu(const void* host, int64_t bytes);
  std::string GpuFailed() const { return std::string(gpu_->status().message()); }

  CudaGpu* const gpu_;
  HazardTracker* const tracker_;
  HostPool* const pool_;
  std::mutex mu_;
  std::shared_ptr<PinnedBlocks> blocks_;  // guarded by mu_
};

}  // namespace tfswap

#endif  // TFSWAP_CC_GPU_STREAM_FILE_TIER_H_
