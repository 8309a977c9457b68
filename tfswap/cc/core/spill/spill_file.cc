#include "core/spill/spill_file.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <utility>

#include "core/util/faults.h"
#include "core/util/now.h"
#include "core/util/readable_bytes.h"
#include "core/util/rounding.h"

namespace tfswap {

namespace {

// The file grows in steps of this size, so that a full disk is noticed at allocation and the file
// system is called rarely.
constexpr int64_t kGrowthBytes = int64_t{64} << 20;

// Return whether the first block is in the page cache; -1 if unknown.
int IsCached(const char* mapped) {
  unsigned char resident = 0;
  if (mincore(const_cast<char*>(mapped), 1, &resident) != 0) return -1;
  return resident & 1;
}

}  // namespace

std::unique_ptr<SpillFile> SpillFile::Create(const std::string& folder, int64_t limit_bytes,
                                             std::string* problem, const SpillOptions& options) {
  std::unique_ptr<DirectFile> file = DirectFile::Open(folder, problem);
  if (file == nullptr) return nullptr;
  std::unique_ptr<SpillFile> spill(new SpillFile(std::move(file), limit_bytes, options));
  *problem = spill->SelfTest();
  if (!problem->empty()) return nullptr;
  return spill;
}

SpillFile::SpillFile(std::unique_ptr<DirectFile> file, int64_t limit_bytes,
                     const SpillOptions& options)
    : file_(std::move(file)), options_(options), process_(getpid()) {
  stats_.limit_bytes = limit_bytes;
}

SpillFile::~SpillFile() {
  if (getpid() != process_) {
    // A forked process has neither their threads nor their rings.
    static_cast<void>(lanes_.release());
  }
}

// Write and read a block; determine the alignment and the I/O engine. Return an error message or
// "".
std::string SpillFile::SelfTest() {
  if (std::string problem = file_->Align(kPieceBytes); !problem.empty()) return problem;
  const int64_t block_bytes = file_->block_bytes();
  const auto block = static_cast<size_t>(block_bytes);
  if (const int error = file_->Resize(0, block_bytes); error != 0) {
    return "no spill file in " + folder() + ": its first " + std::to_string(block_bytes) +
           " bytes failed: " + ErrorText(error) + ", with " +
           ReadableBytes(file_->FreeDiskBytes()) +
           " free there. Free space, or give another spill_dir";
  }
  // Some file systems accept O_DIRECT but use the page cache.
  void* mapped = mmap(nullptr, block, PROT_READ, MAP_SHARED, file_->handle(), 0);
  const bool can_tell = mapped != MAP_FAILED && IsCached(static_cast<char*>(mapped)) == 0;

  std::vector<SpillPiece> pieces(1);
  std::unique_ptr<SpillLane> lane;
  std::string error;
  for (const bool io_uring : {true, false}) {
    if (io_uring && !options_.io_uring) continue;
    uses_io_uring_ = io_uring;
    lane = SpillLane::Make(file_->handle(), io_uring);
    if (lane == nullptr) {
      error = "no spill file in " + folder() +
              ": neither io_uring nor a thread is available to write it. Raise the limit on "
              "processes (ulimit -u)";
      continue;
    }
    char* data = lane->BounceOf(IoQueue::kSlots - 1);
    std::memset(data, 0x5A, block);
    error =
        RunTransfer({true, options_.checksums, 0, data, block_bytes}, *file_, lane.get(), &pieces);
    if (!error.empty()) continue;
    std::memset(data, 0, block);
    error =
        RunTransfer({false, options_.checksums, 0, data, block_bytes}, *file_, lane.get(), &pieces);
    if (error.empty()) break;
  }
  const bool is_cached = can_tell && IsCached(static_cast<char*>(mapped)) == 1;
  if (mapped != MAP_FAILED) munmap(mapped, block);
  if (!error.empty()) return error;
  if (is_cached) {
    return file_->NoDirectIo(
        "its file system keeps files in memory although O_DIRECT was asked "
        "for (tmpfs does)");
  }
  if (const int resized = ftruncate(file_->handle(), 0); resized != 0) {
    return "no spill file in " + folder() + ": emptying it failed: " + ErrorText(errno) +
           ". Give another spill_dir";
  }
  lanes_ = std::make_unique<SpillLanes>(file_->handle(), uses_io_uring_, std::move(lane));
  return "";
}

int64_t SpillFile::Allocate(int64_t bytes) {
  if (getpid() != process_) return -1;
  const int64_t rounded = RoundUp(std::max<int64_t>(bytes, 1), file_->block_bytes());
  auto extent = std::make_shared<Extent>();
  extent->bytes = rounded;
  extent->pieces.resize(RoundUp(rounded, kPieceBytes) / kPieceBytes);
  std::lock_guard<std::mutex> lock(mu_);
  int64_t offset = free_.Take(rounded);
  if (offset < 0) {
    std::string problem = Grow(rounded - free_.free_bytes_at_end());
    if (!problem.empty()) {
      problem_ = "no space for " + ReadableBytes(bytes) + " in the spill file in " + folder() +
                 ": " + problem;
      return -1;
    }
    offset = free_.Take(rounded);
  }
  extents_.emplace(offset, std::move(extent));
  stats_.bytes_in_use += rounded;
  stats_.peak_bytes_in_use = std::max(stats_.peak_bytes_in_use, stats_.bytes_in_use);
  return offset;
}

void SpillFile::Free(int64_t offset, int64_t bytes) {
  if (offset < 0 || getpid() != process_) return;
  const int64_t rounded = RoundUp(std::max<int64_t>(bytes, 1), file_->block_bytes());
  std::lock_guard<std::mutex> lock(mu_);
  const auto extent = extents_.find(offset);
  if (extent == extents_.end() || extent->second->bytes != rounded) return;
  extents_.erase(extent);
  free_.Release(offset, rounded);
  stats_.bytes_in_use -= rounded;
}

// Grow by at least `bytes` bytes; return an error message or "". Call with mu_ held.
std::string SpillFile::Grow(int64_t bytes) {
  const std::string held =
      ReadableBytes(stats_.bytes_in_use) + " of its " + ReadableBytes(free_.end()) + " are in use";
  const int64_t limit = stats_.limit_bytes;
  const int64_t room = limit > 0 ? RoundDown(limit, file_->block_bytes()) - free_.end()
                                 : std::numeric_limits<int64_t>::max();
  if (bytes > room) {
    return "it is limited to " + ReadableBytes(limit) + ", " + held +
           ", and the largest free stretch is " + ReadableBytes(free_.largest_free_bytes()) +
           ". Raise its limit or host_limit";
  }
  int error = 0;
  for (const int64_t step : {std::max(bytes, std::min(kGrowthBytes, room)), bytes}) {
    error =
        Faults::Strikes(Fault::kDiskFull) ? ENOSPC : file_->Resize(free_.end(), free_.end() + step);
    if (error != 0) continue;
    free_.Grow(step);
    stats_.file_bytes = free_.end();
    return "";
  }
  return "it cannot grow by " + ReadableBytes(bytes) + ": " + ErrorText(error) + "; " + held +
         ", and " + ReadableBytes(file_->FreeDiskBytes()) +
         " are free on the disk. Free space in " + folder() +
         ", give another spill_dir, or raise host_limit";
}

std::string SpillFile::Write(int64_t offset, const void* data, int64_t bytes) {
  return Move(true, offset, static_cast<char*>(const_cast<void*>(data)), bytes);
}

std::string SpillFile::Read(int64_t offset, void* data, int64_t bytes) {
  return Move(false, offset, static_cast<char*>(data), bytes);
}

std::string SpillFile::Move(bool write, int64_t offset, char* data, int64_t bytes) {
  if (getpid() != process_) return InForkedProcess();
  if (bytes <= 0) return "";
  const int64_t start_ns = NowNs();
  size_t first_piece = 0;
  const std::shared_ptr<Extent> extent = Find(offset, bytes, &first_piece);
  const std::string stretch = std::to_string(bytes) + " bytes at offset " + std::to_string(offset) +
                              " of the spill file in " + folder();
  if (extent == nullptr) return "no extent holds " + stretch + ": they were never allocated";

  std::vector<SpillPiece> pieces(RoundUp(bytes, kPieceBytes) / kPieceBytes);
  const auto kept = extent->pieces.begin() + static_cast<int64_t>(first_piece);
  if (write) {
    // Invalid until they are written.
    std::fill_n(kept, pieces.size(), SpillPiece());
  } else {
    std::copy_n(kept, pieces.size(), pieces.begin());
    for (size_t i = 0; i < pieces.size(); ++i) {
      const int64_t wanted = std::min(kPieceBytes, bytes - static_cast<int64_t>(i) * kPieceBytes);
      if (pieces[i].bytes != wanted) {
        return "reading " + stretch + ": of piece " + std::to_string(first_piece + i) + " " +
               std::to_string(wanted) + " bytes were requested and " +
               std::to_string(pieces[i].bytes) + " were written";
      }
    }
  }
  std::unique_ptr<SpillLane> lane = lanes_->Take();
  const std::string error =
      RunTransfer({write, options_.checksums, offset, data, bytes}, *file_, lane.get(), &pieces);
  lanes_->Release(std::move(lane));
  if (write && error.empty()) std::copy(pieces.begin(), pieces.end(), kept);

  std::lock_guard<std::mutex> lock(mu_);
  (write ? stats_.write_ns : stats_.read_ns) += NowNs() - start_ns;
  if (error.empty()) (write ? stats_.bytes_written : stats_.bytes_read) += bytes;
  return error;
}

std::shared_ptr<SpillFile::Extent> SpillFile::Find(int64_t offset, int64_t bytes,
                                                   size_t* first_piece) const {
  std::lock_guard<std::mutex> lock(mu_);
  auto extent = extents_.upper_bound(offset);
  if (extent == extents_.begin()) return nullptr;
  --extent;
  const int64_t inside = offset - extent->first;
  if (inside % kPieceBytes != 0 || inside + bytes > extent->second->bytes) return nullptr;
  *first_piece = static_cast<size_t>(inside / kPieceBytes);
  return extent->second;
}

SpillStats SpillFile::Stats() const {
  std::lock_guard<std::mutex> lock(mu_);
  return stats_;
}

void SpillFile::ResetPeak() {
  std::lock_guard<std::mutex> lock(mu_);
  stats_.peak_bytes_in_use = stats_.bytes_in_use;
}

std::string SpillFile::problem() const {
  if (getpid() != process_) return InForkedProcess();
  std::lock_guard<std::mutex> lock(mu_);
  return problem_;
}

std::string SpillFile::InForkedProcess() const {
  return "the spill file in " + folder() + " is of process " + std::to_string(process_) +
         ", and this is process " + std::to_string(getpid()) +
         ", forked from it: open another spill file there";
}

}  // namespace tfswap
