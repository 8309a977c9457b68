#include "core/spill/spill_transfer.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <iterator>

#include "core/memory/copy.h"
#include "core/util/faults.h"
#include "core/util/readable_bytes.h"
#include "core/util/rounding.h"

namespace tfswap {

namespace {

// Retries of a request without progress (EINTR, EAGAIN).
constexpr int kMaxTries = 100;

// Return the fault to inject into a call; kCount for none.
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

// Runs one transfer, piece by piece, through the slots of a lane.
class PiecewiseTransfer {
 public:
  PiecewiseTransfer(const SpillTransfer& transfer, const DirectFile& file, SpillLane* lane,
                    std::vector<SpillPiece>* pieces)
      : file_(file),
        lane_(lane),
        write_(transfer.write),
        checksums_(transfer.checksums),
        offset_(transfer.offset),
        data_(transfer.data),
        bytes_(transfer.bytes),
        pieces_(*pieces),
        block_bytes_(file.block_bytes()),
        lead_(offset_ % block_bytes_),
        is_direct_(lead_ == 0 && reinterpret_cast<uintptr_t>(data_) % file.memory_alignment() == 0),
        fault_(FaultOf(write_)) {
    for (int slot = 0; slot < IoQueue::kSlots; ++slot) idle_.push_back(slot);
  }

  std::string Run() {
    const auto count = static_cast<int64_t>(pieces_.size());
    for (;;) {
      if (error_.empty() && started_ < count && !idle_.empty()) {
        Start(started_++);
      } else if (error_.empty() && write_ && checksummed_ < started_) {
        // Overlaps with the writes.
        pieces_[checksummed_].bytes = BytesOf(checksummed_);
        if (checksums_) pieces_[checksummed_].checksum = ChecksumOf(checksummed_);
        ++checksummed_;
      } else if (!unchecked_.empty()) {
        // Overlaps with later reads.
        Check(unchecked_.back());
        unchecked_.pop_back();
      } else if (idle_.size() < IoQueue::kSlots) {
        const IoQueue::Done done = lane_->queue->Wait();
        OnCompletion(done.slot, done.result);
      } else {
        return error_;
      }
    }
  }

 private:
  struct InFlight {
    int64_t piece = 0;
    int64_t done_bytes = 0;  // from the piece's first block on; whole blocks until it ends
    int tries = 0;
  };

  int64_t BytesOf(int64_t piece) const {
    return std::min(kSpillPieceBytes, bytes_ - piece * kSpillPieceBytes);
  }
  char* DataOf(int64_t piece) const { return data_ + piece * kSpillPieceBytes; }
  // The bytes that are transferred without the bounce buffer.
  int64_t DirectBytesOf(int64_t piece) const {
    return is_direct_ ? RoundDown(BytesOf(piece), block_bytes_) : 0;
  }
  // From the beginning of the piece's first block to its end.
  int64_t EndOf(int64_t piece) const { return lead_ + BytesOf(piece); }
  uint64_t ChecksumOf(int64_t piece) const { return BufferChecksum(DataOf(piece), BytesOf(piece)); }
  // Faults of one piece hit the middle one, with others in flight before and after it.
  bool HasInjectedFault(int64_t piece) const {
    return piece == static_cast<int64_t>(pieces_.size()) / 2;
  }

  void Start(int64_t piece) {
    const int slot = idle_.back();
    idle_.pop_back();
    in_flight_[slot] = {piece};
    const int64_t direct = DirectBytesOf(piece), bytes = BytesOf(piece);
    if (write_ && direct < bytes) {
      std::memcpy(lane_->BounceOf(slot), DataOf(piece) + direct, bytes - direct);
      std::memset(lane_->BounceOf(slot) + bytes - direct, 0, RoundUp(bytes, block_bytes_) - bytes);
    }
    Submit(slot);
  }

  // Submit the rest of the slot's piece.
  void Submit(int slot) {
    const InFlight& now = in_flight_[slot];
    const int64_t direct = DirectBytesOf(now.piece);
    const int64_t whole = RoundUp(EndOf(now.piece), block_bytes_);
    int64_t end = whole;
    if (fault_ == (write_ ? Fault::kShortWrite : Fault::kShortRead)) {
      end = now.done_bytes +
            std::max(RoundDown((whole - now.done_bytes) / 2, block_bytes_), block_bytes_);
    }
    if (fault_ == Fault::kSlowDisk) Faults::Get()->Sleep(fault_);
    IoRequest request;
    request.write = write_;
    request.offset = offset_ - lead_ + now.piece * kSpillPieceBytes + now.done_bytes;
    auto add = [&](char* begin, int64_t from, int64_t to) {
      const int64_t skipped = std::max<int64_t>(now.done_bytes - from, 0);
      const int64_t bytes = std::min(to, end) - from - skipped;
      if (bytes <= 0) return;
      request.parts[request.num_parts++] = {begin + skipped, static_cast<size_t>(bytes)};
    };
    add(DataOf(now.piece), 0, direct);
    add(lane_->BounceOf(slot), direct, whole);
    lane_->queue->Submit(slot, request);
  }

  void OnCompletion(int slot, int64_t result) {
    InFlight& now = in_flight_[slot];
    if (HasInjectedFault(now.piece)) {
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
    } else if (now.done_bytes + result >= EndOf(now.piece)) {
      now.done_bytes += result;  // the last block of a file may be incomplete
    } else if (const int64_t progress = RoundDown(result, block_bytes_); progress > 0) {
      now.done_bytes += progress;
      now.tries = 0;
      return Submit(slot);
    } else if (result > 0) {
      result = 0;  // less than a block is no progress
    }
    const int64_t piece = now.piece;
    idle_.push_back(slot);
    if (now.done_bytes < EndOf(piece)) {
      // Keep the first error; wait for the other requests, and start no more.
      if (error_.empty()) error_ = ErrorMessage(piece, now.done_bytes, result);
    } else if (!write_) {
      const int64_t direct = DirectBytesOf(piece), bytes = BytesOf(piece);
      if (direct < bytes)
        std::memcpy(DataOf(piece) + direct, lane_->BounceOf(slot) + lead_, bytes - direct);
      if (fault_ == Fault::kFileBitFlip && HasInjectedFault(piece)) {
        const int64_t bit = Faults::Get()->bit(fault_);
        DataOf(piece)[bit / 8 % bytes] ^= static_cast<char>(1 << bit % 8);
      }
      if (checksums_) unchecked_.push_back(piece);
    }
  }

  void Check(int64_t piece) {
    const uint64_t sum = ChecksumOf(piece);
    if (sum == pieces_[piece].checksum || !error_.empty()) return;
    char sums[64];
    std::snprintf(sums, sizeof(sums), "%016llx, not %016llx", static_cast<unsigned long long>(sum),
                  static_cast<unsigned long long>(pieces_[piece].checksum));
    error_ = "the " + std::to_string(BytesOf(piece)) + " bytes" + Location(piece, 0) +
             " are not the ones that were " + file_.words().stored + " (checksum " + sums + "). " +
             file_.words().if_changed;
  }

  std::string Location(int64_t piece, int64_t done_bytes) const {
    return " at offset " + std::to_string(offset_ + piece * kSpillPieceBytes + done_bytes) +
           " of " + file_.name();
  }

  std::string ErrorMessage(int64_t piece, int64_t done_bytes, int64_t result) const {
    const std::string what = std::string(write_ ? "writing " : "reading ") +
                             std::to_string(BytesOf(piece) - done_bytes) + " bytes" +
                             Location(piece, done_bytes);
    if (result == 0) {
      return what + " reached the end of the file: it is shorter than when it was " +
             file_.words().stored + ". " + file_.words().if_short;
    }
    std::string advice = file_.words().if_failed;
    if (result == -ENOSPC || result == -EDQUOT) {
      advice = "The disk has " + ReadableBytes(file_.FreeDiskBytes()) +
               " free, although space was allocated for the file: free space there, or give "
               "another spill_dir";
    } else if (result == -EINVAL) {
      advice = "The file system rejects the request with O_DIRECT: give another spill_dir";
    }
    return what + " failed: " + ErrorText(-result) + ". " + advice;
  }

  const DirectFile& file_;
  SpillLane* const lane_;
  const bool write_;
  const bool checksums_;
  const int64_t offset_;
  char* const data_;
  const int64_t bytes_;
  std::vector<SpillPiece>& pieces_;
  const int64_t block_bytes_;
  const int64_t lead_;    // from the beginning of a block to the data in it
  const bool is_direct_;  // whether whole blocks need no bounce buffer
  const Fault fault_;
  InFlight in_flight_[IoQueue::kSlots];
  std::vector<int> idle_;
  std::vector<int64_t> unchecked_;
  int64_t started_ = 0;
  int64_t checksummed_ = 0;
  std::string error_;
};

}  // namespace

std::string RunTransfer(const SpillTransfer& transfer, const DirectFile& file, SpillLane* lane,
                        std::vector<SpillPiece>* pieces) {
  return PiecewiseTransfer(transfer, file, lane, pieces).Run();
}

}  // namespace tfswap
