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

// Of one request that makes no progress, because the kernel asks for another try.
constexpr int kMaxTries = 100;

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

// One transfer: its pieces through the lane's slots.
class InPieces {
 public:
  InPieces(const SpillTransfer& transfer, const DirectFile& file, SpillLane* lane,
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
        is_aligned_(reinterpret_cast<uintptr_t>(data_) % file.memory_alignment() == 0),
        fault_(FaultOf(write_)) {
    for (int slot = 0; slot < IoQueue::kSlots; ++slot) idle_.push_back(slot);
  }

  std::string Run() {
    const auto count = static_cast<int64_t>(pieces_.size());
    for (;;) {
      if (error_.empty() && started_ < count && !idle_.empty()) {
        Start(started_++);
      } else if (error_.empty() && write_ && summed_ < started_) {
        // While it is being written.
        pieces_[summed_].bytes = BytesOf(summed_);
        if (checksums_) pieces_[summed_].checksum = SumOf(summed_);
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
    return std::min(kSpillPieceBytes, bytes_ - piece * kSpillPieceBytes);
  }
  char* DataOf(int64_t piece) const { return data_ + piece * kSpillPieceBytes; }
  // What goes straight from or into the caller's memory.
  int64_t DirectBytesOf(int64_t piece) const {
    return is_aligned_ ? RoundDown(BytesOf(piece), block_bytes_) : 0;
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
      std::memcpy(lane_->BounceOf(slot), DataOf(piece) + direct, bytes - direct);
      std::memset(lane_->BounceOf(slot) + bytes - direct, 0, RoundUp(bytes, block_bytes_) - bytes);
    }
    Submit(slot);
  }

  // What is left of the slot's piece.
  void Submit(int slot) {
    const InFlight& now = in_flight_[slot];
    const int64_t direct = DirectBytesOf(now.piece);
    const int64_t whole = RoundUp(BytesOf(now.piece), block_bytes_);
    int64_t end = whole;
    if (fault_ == (write_ ? Fault::kShortWrite : Fault::kShortRead)) {
      end = now.done_bytes +
            std::max(RoundDown((whole - now.done_bytes) / 2, block_bytes_), block_bytes_);
    }
    if (fault_ == Fault::kSlowDisk) Faults::Get()->Sleep(fault_);
    IoRequest request;
    request.write = write_;
    request.offset = offset_ + now.piece * kSpillPieceBytes + now.done_bytes;
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
    } else if (const int64_t progress = RoundDown(result, block_bytes_); progress > 0) {
      now.done_bytes += progress;
      now.tries = 0;
      if (now.done_bytes < RoundUp(BytesOf(now.piece), block_bytes_)) return Submit(slot);
    } else if (result > 0) {
      result = 0;  // less than a block is as good as nothing
    }
    const int64_t piece = now.piece;
    idle_.push_back(slot);
    if (now.done_bytes < RoundUp(BytesOf(piece), block_bytes_)) {
      // The first that goes wrong; the others are waited for, and nothing more begins.
      if (error_.empty()) error_ = Failed(piece, now.done_bytes, result);
    } else if (!write_) {
      const int64_t direct = DirectBytesOf(piece), bytes = BytesOf(piece);
      if (direct < bytes)
        std::memcpy(DataOf(piece) + direct, lane_->BounceOf(slot), bytes - direct);
      if (fault_ == Fault::kFileBitFlip && IsHit(piece)) {
        const int64_t bit = Faults::Get()->bit(fault_);
        DataOf(piece)[bit / 8 % bytes] ^= static_cast<char>(1 << bit % 8);
      }
      if (checksums_) unchecked_.push_back(piece);
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
    return " at offset " + std::to_string(offset_ + piece * kSpillPieceBytes + done_bytes) +
           " of the spill file in " + file_.folder();
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
      advice = "The disk has " + ReadableBytes(file_.FreeDiskBytes()) +
               " free, although room was set aside for the file: free space there, or give "
               "another spill_dir";
    } else if (result == -EINVAL) {
      advice = "The file system takes no such request past the page cache: give another spill_dir";
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
  const bool is_aligned_;
  const Fault fault_;
  InFlight in_flight_[IoQueue::kSlots];
  std::vector<int> idle_;
  std::vector<int64_t> unchecked_;
  int64_t started_ = 0;
  int64_t summed_ = 0;
  std::string error_;
};

}  // namespace

std::string RunTransfer(const SpillTransfer& transfer, const DirectFile& file, SpillLane* lane,
                        std::vector<SpillPiece>* pieces) {
  return InPieces(transfer, file, lane, pieces).Run();
}

}  // namespace tfswap
