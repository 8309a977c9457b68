#include "gpu/stream_file_tier.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "core/util/now.h"
#include "core/util/readable_bytes.h"

namespace tfswap {

namespace {

constexpr auto kIdlePollInterval = std::chrono::microseconds(50);
// Enough to saturate a disk; less if host memory is scarce, but a multiple of the file's piece
// size.
constexpr int64_t kLargestPieceBytes = 4 * SpillFile::kPieceBytes;
constexpr int64_t kSmallestPieceBytes = SpillFile::kPieceBytes;
constexpr int kPieces = 4;  // two per direction
// Limit of the share of host_limit, unless the smallest pieces need more.
constexpr int64_t kPartOfLimit = 8;

}  // namespace

class StreamFileTier::PinnedBlocks {
 public:
  // Return the largest blocks that fit, or null.
  static std::shared_ptr<PinnedBlocks> Take(HostPool* pool) {
    const int64_t limit_bytes = pool->Stats().limit_bytes;
    for (int64_t bytes = kLargestPieceBytes; bytes >= kSmallestPieceBytes; bytes /= 2) {
      const bool too_much = limit_bytes > 0 && kPieces * bytes > limit_bytes / kPartOfLimit;
      if (too_much && bytes > kSmallestPieceBytes) continue;
      auto* begin = static_cast<char*>(pool->Allocate(kPieces * bytes));
      if (begin != nullptr) return std::make_shared<PinnedBlocks>(pool, begin, bytes);
    }
    return nullptr;
  }

  PinnedBlocks(HostPool* pool, char* begin, int64_t piece_bytes)
      : piece_bytes(piece_bytes), pool_(pool), begin_(begin) {
    out.blocks = {begin, begin + piece_bytes};
    in.blocks = {begin + 2 * piece_bytes, begin + 3 * piece_bytes};
  }
  ~PinnedBlocks() { pool_->Free(begin_, kPieces * piece_bytes); }
  PinnedBlocks(const PinnedBlocks&) = delete;
  PinnedBlocks& operator=(const PinnedBlocks&) = delete;

  const int64_t piece_bytes;
  Pair out;
  Pair in;

 private:
  HostPool* const pool_;
  char* const begin_;
};

std::string StreamFileTier::Prepare() { return Blocks() != nullptr ? "" : OutOfPinnedMemory(); }

void StreamFileTier::Release() {
  std::shared_ptr<PinnedBlocks> released;
  std::lock_guard<std::mutex> lock(mu_);
  blocks_.swap(released);
}

std::shared_ptr<StreamFileTier::PinnedBlocks> StreamFileTier::Blocks() {
  std::lock_guard<std::mutex> lock(mu_);
  if (blocks_ != nullptr) return blocks_;
  std::shared_ptr<PinnedBlocks> taken = PinnedBlocks::Take(pool_);
  // A read from a file that was closed meanwhile does not share them.
  if (FarFile::Get()->IsOpen()) blocks_ = taken;
  return taken;
}

std::string StreamFileTier::OutOfPinnedMemory() const {
  const HostPoolStats host = pool_->Stats();
  return "tfswap: copies between a GPU and the file in spill_dir need " +
         ReadableBytes(kPieces * kSmallestPieceBytes) +
         " of pinned host memory, which is not available: " + ReadableBytes(host.bytes_in_use) +
         (host.limit_bytes > 0 ? " of this GPU's share of host_limit, " +
                                     ReadableBytes(host.limit_bytes) + ", are in use"
                               : " are in use") +
         ". Raise host_limit";
}

bool StreamFileTier::WaitForGpu(const void* host, int64_t bytes) {
  while (!tracker_->IsIdle(host, bytes)) {
    if (!gpu_->status().ok()) return false;
    std::this_thread::sleep_for(kIdlePollInterval);
  }
  return gpu_->status().ok();
}

std::string StreamFileTier::CopyOut(const HazardTracker::PiecewiseMove& whole, int64_t bytes,
                                    SpillFile* file, int64_t offset, int64_t* disk_ns) {
  const std::shared_ptr<PinnedBlocks> blocks = Blocks();
  if (blocks == nullptr) return OutOfPinnedMemory();
  std::lock_guard<std::mutex> one(blocks->out.mu);
  const auto piece_at = [&](int64_t at) {
    const int64_t piece_bytes = std::min(blocks->piece_bytes, bytes - at);
    auto* from = static_cast<char*>(const_cast<void*>(whole.block)) + at;
    char* to = blocks->out.blocks[at / blocks->piece_bytes % 2];
    return Transfer{from, piece_bytes, to, piece_bytes};
  };
  Transfer piece = piece_at(0);
  if (!tracker_->MovePieceOut(whole, piece)) return GpuFailed();
  for (int64_t at = 0; at < bytes; at += blocks->piece_bytes) {
    Transfer next{};
    if (at + blocks->piece_bytes < bytes) {
      next = piece_at(at + blocks->piece_bytes);
      if (!tracker_->MovePieceOut(whole, next)) return GpuFailed();
    }
    if (!WaitForGpu(piece.host, piece.host_bytes)) return GpuFailed();
    const int64_t start_ns = NowNs();
    std::string problem = file->Write(offset + at, piece.host, piece.host_bytes);
    *disk_ns += NowNs() - start_ns;
    if (!problem.empty()) return problem;
    piece = next;
  }
  return "";
}

std::string StreamFileTier::CopyIn(const FileExtent& extent, void* block, int64_t bytes,
                                   int64_t* disk_ns) {
  const std::shared_ptr<PinnedBlocks> blocks = Blocks();
  if (blocks == nullptr) return OutOfPinnedMemory();
  std::lock_guard<std::mutex> one(blocks->in.mu);
  const HazardTracker::PiecewiseMove whole = tracker_->BeginIn(block);
  for (int64_t at = 0; at < bytes; at += blocks->piece_bytes) {
    const int64_t piece_bytes = std::min(blocks->piece_bytes, bytes - at);
    char* from = blocks->in.blocks[at / blocks->piece_bytes % 2];
    // The GPU may still read the previous piece in this block.
    if (!WaitForGpu(from, piece_bytes)) return GpuFailed();
    const int64_t start_ns = NowNs();
    std::string problem = extent.Read(at, from, piece_bytes);
    *disk_ns += NowNs() - start_ns;
    if (!problem.empty()) return problem;
    if (!tracker_->MovePieceIn(whole,
                               {static_cast<char*>(block) + at, piece_bytes, from, piece_bytes})) {
      return GpuFailed();
    }
  }
  return "";
}

}  // namespace tfswap
