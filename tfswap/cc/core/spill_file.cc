#include "core/spill_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <limits>
#include <random>
#include <system_error>
#include <utility>

#include "core/copy.h"
#include "core/faults.h"
#include "core/readable_bytes.h"

namespace tfswap {

namespace {

// A full disk is noticed when an extent is asked for, and the disk is asked seldom.
constexpr int64_t kGrowthBytes = int64_t{64} << 20;
// Calls at once. More wait: the disk has enough to do.
constexpr int kMaxLanes = 4;
// Of one request that makes no progress, because the kernel asks for another try.
constexpr int kMaxTries = 100;

int64_t RoundUp(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }
int64_t RoundDown(int64_t value, int64_t unit) { return value / unit * unit; }

int64_t NowNs() {
  return std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
}

std::string ErrorText(int64_t error) {
  return std::system_category().message(static_cast<int>(error)) + " (errno " +
         std::to_string(error) + ")";
}

int64_t FreeDiskBytes(int file) {
  struct statvfs disk;
  if (fstatvfs(file, &disk) != 0) return 0;
  return static_cast<int64_t>(disk.f_bavail) * static_cast<int64_t>(disk.f_frsize);
}

// struct statx, as far as it is needed; the C library's may be older than the kernel's.
struct DirectIo {
  uint32_t mask;
  char between[148];
  uint32_t memory_alignment;
  uint32_t offset_alignment;
  char rest[96];
};
static_assert(sizeof(DirectIo) == 256);
constexpr uint32_t kDirectIoAlignment = 0x2000;  // STATX_DIOALIGN

// What the file system says about it; nothing where it says nothing.
bool AskForAlignment(int file, DirectIo* direct_io) {
  *direct_io = {};
#if defined(SYS_statx)
  return syscall(SYS_statx, file, "", AT_EMPTY_PATH, kDirectIoAlignment, direct_io) == 0 &&
         (direct_io->mask & kDirectIoAlignment) != 0;
#else
  return false;
#endif
}

// Opens a file without a name. -errno where it cannot.
int OpenNameless(const std::string& folder, int flags) {
  flags |= O_RDWR | O_CLOEXEC;
#if defined(O_TMPFILE)
  const int file = open(folder.c_str(), flags | O_TMPFILE | O_EXCL, 0600);
  if (file >= 0) return file;
  if (errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL) return -errno;
#endif
  // Not every file system has files that never had a name.
  std::random_device dice;
  for (int tries = 0;; ++tries) {
    const std::string path = folder + "/.tfswap-spill-" + std::to_string(getpid()) + "-" +
                             std::to_string(dice()) + std::to_string(dice());
    const int named = open(path.c_str(), flags | O_CREAT | O_EXCL, 0600);
    const int error = errno;
    if (named < 0 && error == EEXIST && tries < 100) continue;
    // Some make the file and then refuse to open it so.
    if (named >= 0 || error == EINVAL) unlink(path.c_str());
    return named >= 0 ? named : -error;
  }
}

std::string NoDirectIo(const std::string& folder, const std::string& why) {
  return "no spill file in " + folder + ": " + why +
         ", so what is swapped out would stay in memory. Give another spill_dir, on a disk with a "
         "file system that has O_DIRECT (ext4 and XFS do)";
}

std::string CannotOpen(const std::string& folder, int error) {
  if (error == EINVAL) {
    const int cached = OpenNameless(folder, 0);
    if (cached >= 0) {
      close(cached);
      return NoDirectIo(folder, "its file system refuses O_DIRECT");
    }
  }
  return "no spill file in " + folder + ": " + ErrorText(error) +
         ". Give a spill_dir that is there and may be written";
}

// Which fault a call is to have; kCount: none.
Fault FaultOf(bool write) {
  constexpr Fault kOfWrites[] = {Fault::kWriteError, Fault::kWriteFull, Fault::kShortWrite};
  constexpr Fault kOfReads[] = {Fault::kReadError, Fault::kShortRead, Fault::kEndOfFile,
                                Fault::kFileBitFlip};
  const Fault* const begin = write ? std::begin(kOfWrites) : std::begin(kOfReads);
  const Fault* const end = write ? std::end(kOfWrites) : std::end(kOfReads);
  const Fault* const found = std::find_if(begin, end, Faults::Strikes);
  if (found != end) return *found;
  return Faults::Strikes(Fault::kSlowDisk) ? Fault::kSlowDisk : Fault::kCount;
}

// Whether the file's first block is in memory. -1: no telling.
int IsCached(const char* mapped) {
  unsigned char resident = 0;
  if (mincore(const_cast<char*>(mapped), 1, &resident) != 0) return -1;
  return resident & 1;
}

}  // namespace

SpillFile::Lane::~Lane() { std::free(bounce); }

// One call of Write() or Read(): its pieces through the lane's slots.
class SpillFile::Transfer {
 public:
  Transfer(const SpillFile& file, Lane* lane, bool write, int64_t offset, char* data, int64_t bytes,
           std::vector<Piece>* pieces)
      : file_(file),
        lane_(lane),
        write_(write),
        offset_(offset),
        data_(data),
        bytes_(bytes),
        pieces_(*pieces),
        is_aligned_(reinterpret_cast<uintptr_t>(data) % file.memory_alignment_ == 0),
        fault_(FaultOf(write)) {
    for (int slot = 0; slot < IoQueue::kSlots; ++slot) idle_.push_back(slot);
  }

  // Fills in the pieces' checksums, or compares them. The error, or none.
  std::string Run() {
    const auto count = static_cast<int64_t>(pieces_.size());
    for (;;) {
      if (error_.empty() && started_ < count && !idle_.empty()) {
        Start(started_++);
      } else if (error_.empty() && write_ && summed_ < started_) {
        // While it is being written.
        pieces_[summed_].bytes = BytesOf(summed_);
        if (file_.options_.checksums) pieces_[summed_].checksum = SumOf(summed_);
        ++summed_;
      } else if (!unchecked_.empty()) {
        // While later ones are being read.
        Check(unchecked_.back());
        unchecked_.pop_back();
      } else if (idle_.size() < IoQueue::kSlots) {
        const IoQueue::Done done = lane_->queue->Wait();
        GoOn(done.slot, done.result);
      } else {
        return error_;
      }
    }
  }

 private:
  struct InFlight {
    int64_t piece = 0;
    int64_t done_bytes = 0;  // whole blocks
    int tries = 0;
  };

  int64_t BytesOf(int64_t piece) const {
    return std::min(kPieceBytes, bytes_ - piece * kPieceBytes);
  }
  char* DataOf(int64_t piece) const { return data_ + piece * kPieceBytes; }
  char* BounceOf(int slot) const { return lane_->bounce + slot * kPieceBytes; }
  // What goes straight from or into the caller's memory.
  int64_t DirectBytesOf(int64_t piece) const {
    return is_aligned_ ? RoundDown(BytesOf(piece), file_.block_bytes_) : 0;
  }
  uint64_t SumOf(int64_t piece) const { return BufferChecksum(DataOf(piece), BytesOf(piece)); }
  // Of faults that hit one piece a call: others are in flight before it and after it.
  bool IsHit(int64_t piece) const { return piece == static_cast<int64_t>(pieces_.size()) / 2; }

  void Start(int64_t piece) {
    const int slot = idle_.back();
    idle_.pop_back();
    in_flight_[slot] = {piece};
    const int64_t direct = DirectBytesOf(piece), bytes = BytesOf(piece);
    if (write_ && direct < bytes) {
      std::memcpy(BounceOf(slot), DataOf(piece) + direct, bytes - direct);
      std::memset(BounceOf(slot) + bytes - direct, 0, RoundUp(bytes, file_.block_bytes_) - bytes);
    }
    Submit(slot);
  }

  // What is left of the slot's piece.
  void Submit(int slot) {
    const InFlight& now = in_flight_[slot];
    const int64_t direct = DirectBytesOf(now.piece);
    const int64_t whole = RoundUp(BytesOf(now.piece), file_.block_bytes_);
    int64_t end = whole;
    if (fault_ == (write_ ? Fault::kShortWrite : Fault::kShortRead)) {
      end = now.done_bytes + std::max(RoundDown((whole - now.done_bytes) / 2, file_.block_bytes_),
                                      file_.block_bytes_);
    }
    if (fault_ == Fault::kSlowDisk) Faults::Get()->Sleep(fault_);
    IoRequest request;
    request.write = write_;
    request.offset = offset_ + now.piece * kPieceBytes + now.done_bytes;
    auto add = [&](char* begin, int64_t from, int64_t to) {
      const int64_t skipped = std::max<int64_t>(now.done_bytes - from, 0);
      const int64_t bytes = std::min(to, end) - from - skipped;
      if (bytes <= 0) return;
      request.parts[request.num_parts++] = {begin + skipped, static_cast<size_t>(bytes)};
    };
    add(DataOf(now.piece), 0, direct);
    add(BounceOf(slot), direct, whole);
    lane_->queue->Submit(slot, request);
  }

  void GoOn(int slot, int64_t result) {
    InFlight& now = in_flight_[slot];
    if (IsHit(now.piece)) {
      if (fault_ == Fault::kWriteError && write_) result = -EIO;
      if (fault_ == Fault::kWriteFull && write_) result = -ENOSPC;
      if (fault_ == Fault::kReadError && !write_) result = -EIO;
      if (fault_ == Fault::kEndOfFile && !write_) result = 0;
    }
    if (result == -EINTR || result == -EAGAIN) {
      if (++now.tries < kMaxTries) {
        if (result == -EAGAIN) usleep(1000);
        return Submit(slot);
      }
    } else if (const int64_t progress = RoundDown(result, file_.block_bytes_); progress > 0) {
      now.done_bytes += progress;
      now.tries = 0;
      if (now.done_bytes < RoundUp(BytesOf(now.piece), file_.block_bytes_)) return Submit(slot);
    } else if (result > 0) {
      result = 0;  // less than a block is as good as nothing
    }
    const int64_t piece = now.piece;
    idle_.push_back(slot);
    if (now.done_bytes < RoundUp(BytesOf(piece), file_.block_bytes_)) {
      // The first that goes wrong; the others are waited for, and nothing more begins.
      if (error_.empty()) error_ = Failed(piece, now.done_bytes, result);
    } else if (!write_) {
      const int64_t direct = DirectBytesOf(piece), bytes = BytesOf(piece);
      if (direct < bytes) std::memcpy(DataOf(piece) + direct, BounceOf(slot), bytes - direct);
      if (fault_ == Fault::kFileBitFlip && IsHit(piece)) {
        const int64_t bit = Faults::Get()->bit(fault_);
        DataOf(piece)[bit / 8 % bytes] ^= static_cast<char>(1 << bit % 8);
      }
      if (file_.options_.checksums) unchecked_.push_back(piece);
    }
  }

  void Check(int64_t piece) {
    const uint64_t sum = SumOf(piece);
    if (sum == pieces_[piece].checksum || !error_.empty()) return;
    char sums[64];
    std::snprintf(sums, sizeof(sums), "%016llx, not %016llx", static_cast<unsigned long long>(sum),
                  static_cast<unsigned long long>(pieces_[piece].checksum));
    error_ = "the " + std::to_string(BytesOf(piece)) + " bytes" + PlaceOf(piece, 0) +
             " are not the ones that were written (checksum " + sums +
             "). Something between memory and the disk changes data: look at dmesg, and test the "
             "disk and the memory; do not use what was computed from this spill_dir";
  }

  std::string PlaceOf(int64_t piece, int64_t done_bytes) const {
    return " at offset " + std::to_string(offset_ + piece * kPieceBytes + done_bytes) +
           " of the spill file in " + file_.folder_;
  }

  std::string Failed(int64_t piece, int64_t done_bytes, int64_t result) const {
    const std::string what = std::string(write_ ? "writing " : "reading ") +
                             std::to_string(BytesOf(piece) - done_bytes) + " bytes" +
                             PlaceOf(piece, done_bytes);
    if (result == 0) {
      return what + " ended before they were there: the file is shorter than it was made. " +
             "Somebody has cut it, or its file system is damaged: look at dmesg, or give another "
             "spill_dir";
    }
    std::string advice =
        "The disk or the way to it fails: look at dmesg, or give another spill_dir";
    if (result == -ENOSPC || result == -EDQUOT) {
      advice = "The disk has " + ReadableBytes(FreeDiskBytes(file_.file_)) +
               " free, although room was set aside for the file: free space there, or give "
               "another spill_dir";
    } else if (result == -EINVAL) {
      advice = "The file system takes no such request past the page cache: give another spill_dir";
    }
    return what + " failed: " + ErrorText(-result) + ". " + advice;
  }

  const SpillFile& file_;
  Lane* const lane_;
  const bool write_;
  const int64_t offset_;
  char* const data_;
  const int64_t bytes_;
  std::vector<Piece>& pieces_;
  const bool is_aligned_;
  const Fault fault_;
  InFlight in_flight_[IoQueue::kSlots];
  std::vector<int> idle_;
  std::vector<int64_t> unchecked_;
  int64_t started_ = 0;
  int64_t summed_ = 0;
  std::string error_;
};

std::unique_ptr<SpillFile> SpillFile::Create(const std::string& folder, int64_t limit_bytes,
                                             std::string* problem, const SpillOptions& options) {
  const int file = OpenNameless(folder, O_DIRECT);
  if (file < 0) {
    *problem = CannotOpen(folder, -file);
    return nullptr;
  }
  std::unique_ptr<SpillFile> spill(new SpillFile(folder, file, limit_bytes, options));
  *problem = spill->TryOut();
  if (!problem->empty()) return nullptr;
  return spill;
}

SpillFile::SpillFile(std::string folder, int file, int64_t limit_bytes, const SpillOptions& options)
    : folder_(std::move(folder)), file_(file), options_(options), process_(getpid()) {
  stats_.limit_bytes = limit_bytes;
}

SpillFile::~SpillFile() {
  if (getpid() != process_) {
    // Neither their threads nor their rings are here, nor who may be waiting for one.
    static_cast<void>(lanes_.release());
  }
  lanes_.reset();
  close(file_);
}

// Whether blocks come and go as they should; settles the alignment and the engine. The problem, or
// none.
std::string SpillFile::TryOut() {
  DirectIo direct_io;
  if (AskForAlignment(file_, &direct_io)) {
    if (direct_io.offset_alignment == 0) {
      return NoDirectIo(folder_, "its file system has no O_DIRECT for files of its kind");
    }
    block_bytes_ = RoundUp(std::max<int64_t>(block_bytes_, direct_io.offset_alignment),
                           direct_io.offset_alignment);
    memory_alignment_ = std::max<int64_t>(direct_io.memory_alignment, 1);
  }
  if (kPieceBytes % block_bytes_ != 0 || kPieceBytes % memory_alignment_ != 0) {
    return NoDirectIo(folder_, "its file system reads and writes blocks of " +
                                   std::to_string(block_bytes_) + " bytes, from memory at " +
                                   std::to_string(memory_alignment_));
  }
  const auto block = static_cast<size_t>(block_bytes_);
  if (const int error = ResizeFile(block_bytes_); error != 0) {
    return "no spill file in " + folder_ + ": its first " + std::to_string(block_bytes_) +
           " bytes failed: " + ErrorText(error) + ", with " + ReadableBytes(FreeDiskBytes(file_)) +
           " free there. Free space, or give another spill_dir";
  }
  // Some file systems take O_DIRECT and go through the page cache nevertheless.
  void* mapped = mmap(nullptr, block, PROT_READ, MAP_SHARED, file_, 0);
  const bool can_tell = mapped != MAP_FAILED && IsCached(static_cast<char*>(mapped)) == 0;

  std::vector<Piece> pieces(1);
  std::unique_ptr<Lane> lane;
  std::string error;
  for (const bool io_uring : {true, false}) {
    if (io_uring && !options_.io_uring) continue;
    uses_io_uring_ = io_uring;
    lane = MakeLane(io_uring);
    if (lane == nullptr) {
      error = "no spill file in " + folder_ +
              ": there is neither io_uring nor a thread to write it with. Raise the limit on "
              "processes (ulimit -u)";
      continue;
    }
    char* data = lane->bounce + (IoQueue::kSlots - 1) * kPieceBytes;
    std::memset(data, 0x5A, block);
    error = Transfer(*this, lane.get(), true, 0, data, block_bytes_, &pieces).Run();
    if (!error.empty()) continue;
    std::memset(data, 0, block);
    error = Transfer(*this, lane.get(), false, 0, data, block_bytes_, &pieces).Run();
    if (error.empty()) break;
  }
  const bool is_cached = can_tell && IsCached(static_cast<char*>(mapped)) == 1;
  if (mapped != MAP_FAILED) munmap(mapped, block);
  if (!error.empty()) return error;
  if (is_cached) {
    return NoDirectIo(folder_,
                      "its file system keeps files in memory although O_DIRECT was asked "
                      "for (tmpfs does)");
  }
  if (const int resized = ftruncate(file_, 0); resized != 0) {
    return "no spill file in " + folder_ + ": emptying it failed: " + ErrorText(errno) +
           ". Give another spill_dir";
  }
  lanes_->count = 1;
  lanes_->idle.push_back(std::move(lane));
  return "";
}

int64_t SpillFile::Allocate(int64_t bytes) {
  if (getpid() != process_) return -1;
  const int64_t rounded = RoundUp(std::max<int64_t>(bytes, 1), block_bytes_);
  auto extent = std::make_shared<Extent>();
  extent->bytes = rounded;
  extent->pieces.resize(RoundUp(rounded, kPieceBytes) / kPieceBytes);
  std::lock_guard<std::mutex> lock(mu_);
  int64_t offset = free_.Take(rounded);
  if (offset < 0) {
    std::string problem = Grow(rounded - free_.free_bytes_at_end());
    if (!problem.empty()) {
      problem_ = "no room for " + ReadableBytes(bytes) + " in the spill file in " + folder_ + ": " +
                 problem;
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
  const int64_t rounded = RoundUp(std::max<int64_t>(bytes, 1), block_bytes_);
  std::lock_guard<std::mutex> lock(mu_);
  const auto extent = extents_.find(offset);
  if (extent == extents_.end() || extent->second->bytes != rounded) return;
  extents_.erase(extent);
  free_.GiveBack(offset, rounded);
  stats_.bytes_in_use -= rounded;
}

// Called with mu_ held. At least `bytes` bytes more; the problem, or none.
std::string SpillFile::Grow(int64_t bytes) {
  const std::string held =
      ReadableBytes(stats_.bytes_in_use) + " of its " + ReadableBytes(free_.end()) + " are in use";
  const int64_t limit = stats_.limit_bytes;
  const int64_t room = limit > 0 ? RoundDown(limit, block_bytes_) - free_.end()
                                 : std::numeric_limits<int64_t>::max();
  if (bytes > room) {
    return "it is limited to " + ReadableBytes(limit) + ", " + held +
           ", and the largest free stretch is " + ReadableBytes(free_.largest_free_bytes()) +
           ". Raise its limit or host_limit";
  }
  int error = 0;
  for (const int64_t step : {std::max(bytes, std::min(kGrowthBytes, room)), bytes}) {
    error = Faults::Strikes(Fault::kDiskFull) ? ENOSPC : ResizeFile(free_.end() + step);
    if (error != 0) continue;
    free_.Grow(step);
    stats_.file_bytes = free_.end();
    return "";
  }
  return "it cannot grow by " + ReadableBytes(bytes) + ": " + ErrorText(error) + "; " + held +
         ", and " + ReadableBytes(FreeDiskBytes(file_)) + " are free on the disk. Free space in " +
         folder_ + ", give another spill_dir, or raise host_limit";
}

// From free_.end() to `bytes`, with room on the disk. 0 or errno; then it is as long as it was.
int SpillFile::ResizeFile(int64_t bytes) {
  const int64_t before = free_.end();
  int error;
  do {
    error = fallocate(file_, 0, before, bytes - before) == 0 ? 0 : errno;
  } while (error == EINTR);
  if (error == EOPNOTSUPP || error == ENOSYS) {
    // Nothing sets room aside; it is at least there now.
    error = FreeDiskBytes(file_) < bytes - before ? ENOSPC
            : ftruncate(file_, bytes) == 0        ? 0
                                                  : errno;
  }
  // It may have got a part of it.
  if (error != 0 && ftruncate(file_, before) != 0) return errno;
  return error;
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
                              " of the spill file in " + folder_;
  if (extent == nullptr) return "no extent holds " + stretch + ": they were never allocated";

  std::vector<Piece> pieces(RoundUp(bytes, kPieceBytes) / kPieceBytes);
  const auto kept = extent->pieces.begin() + static_cast<int64_t>(first_piece);
  if (write) {
    // Until they are written.
    std::fill_n(kept, pieces.size(), Piece());
  } else {
    std::copy_n(kept, pieces.size(), pieces.begin());
    for (size_t i = 0; i < pieces.size(); ++i) {
      const int64_t wanted = std::min(kPieceBytes, bytes - static_cast<int64_t>(i) * kPieceBytes);
      if (pieces[i].bytes != wanted) {
        return "reading " + stretch + ": of piece " + std::to_string(first_piece + i) + " " +
               std::to_string(wanted) + " bytes are asked for and " +
               std::to_string(pieces[i].bytes) + " were written";
      }
    }
  }
  std::unique_ptr<Lane> lane = TakeLane();
  const std::string error = Transfer(*this, lane.get(), write, offset, data, bytes, &pieces).Run();
  GiveBackLane(std::move(lane));
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

std::unique_ptr<SpillFile::Lane> SpillFile::MakeLane(bool io_uring) {
  auto lane = std::make_unique<Lane>();
  lane->queue = io_uring ? IoQueue::OfRing(file_) : IoQueue::OfThreads(file_);
  // Memory only where it is touched.
  lane->bounce = static_cast<char*>(std::aligned_alloc(kPieceBytes, IoQueue::kSlots * kPieceBytes));
  if (lane->queue == nullptr || lane->bounce == nullptr) return nullptr;
  return lane;
}

std::unique_ptr<SpillFile::Lane> SpillFile::TakeLane() {
  std::unique_lock<std::mutex> lock(lanes_->mu);
  if (lanes_->idle.empty() && lanes_->count < kMaxLanes) {
    ++lanes_->count;
    lock.unlock();
    std::unique_ptr<Lane> lane = MakeLane(uses_io_uring_);
    if (lane == nullptr && uses_io_uring_) lane = MakeLane(false);
    if (lane != nullptr) return lane;
    lock.lock();
    --lanes_->count;  // those that there are, then
  }
  lanes_->one_is_idle.wait(lock, [this] { return !lanes_->idle.empty(); });
  std::unique_ptr<Lane> lane = std::move(lanes_->idle.back());
  lanes_->idle.pop_back();
  return lane;
}

void SpillFile::GiveBackLane(std::unique_ptr<Lane> lane) {
  {
    std::lock_guard<std::mutex> lock(lanes_->mu);
    lanes_->idle.push_back(std::move(lane));
  }
  lanes_->one_is_idle.notify_one();
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
  return "the spill file in " + folder_ + " is of process " + std::to_string(process_) +
         ", and this is process " + std::to_string(getpid()) +
         ", forked from it: it needs a spill file of its own";
}

}  // namespace tfswap
