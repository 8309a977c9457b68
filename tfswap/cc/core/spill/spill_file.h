// Far memory in a file.
//
//  caller's memory   |  piece 0  |  piece 1  |  piece 2  | rest |      1 MiB each
//                        |           |           |          |
//  in flight             v           v           v          v          several at once, O_DIRECT
//  file        ...|     extent, whole blocks                    |...
//
// Reads and writes bypass the page cache and access the caller's memory directly where its
// alignment allows; unaligned memory and a rest of less than a block go through bounce buffers.
// Each piece has a checksum in memory, computed while the piece is written and verified while later
// pieces are read, so a disk that returns different data causes an error, never a wrong tensor.
//
// The file is unnamed from its creation: nothing stays on the disk, however the process ends.

#ifndef TFSWAP_CC_CORE_SPILL_SPILL_FILE_H_
#define TFSWAP_CC_CORE_SPILL_SPILL_FILE_H_

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "core/spill/direct_file.h"
#include "core/spill/extents.h"
#include "core/spill/spill_lanes.h"
#include "core/spill/spill_transfer.h"

namespace tfswap {

struct SpillOptions {
  bool checksums = true;
  bool io_uring = true;  // if available, else threads
};

struct SpillStats {
  int64_t bytes_in_use = 0;  // whole blocks
  int64_t peak_bytes_in_use = 0;
  int64_t file_bytes = 0;   // allocated on the disk; counts against the limit
  int64_t limit_bytes = 0;  // 0: none
  int64_t bytes_written = 0;
  int64_t bytes_read = 0;
  int64_t write_ns = 0;  // in Write(), summed over all callers
  int64_t read_ns = 0;
};

// Thread-safe; concurrent reads and writes must be of different extents. In a forked process every
// call returns an error, and the file stays the parent's.
class SpillFile {
 public:
  static constexpr int64_t kPieceBytes = kSpillPieceBytes;

  // Create a file of mode 0600 in `folder`; a limit of 0 is none. On failure, or without O_DIRECT,
  // return null and set `*problem` to what is wrong and what to do.
  static std::unique_ptr<SpillFile> Create(const std::string& folder, int64_t limit_bytes,
                                           std::string* problem, const SpillOptions& options = {});
  ~SpillFile();
  SpillFile(const SpillFile&) = delete;
  SpillFile& operator=(const SpillFile&) = delete;

  // Allocate an extent, including its disk space, and return its offset; -1 if the limit is reached
  // or the disk is full, with the reason in problem().
  int64_t Allocate(int64_t bytes);
  void Free(int64_t offset, int64_t bytes);

  // Block until the transfer has ended, successfully or not; return an error message or "".
  // `offset` is that of an extent plus a multiple of the piece size; reads must be of written data,
  // in whole pieces or up to its end.
  std::string Write(int64_t offset, const void* data, int64_t bytes);
  std::string Read(int64_t offset, void* data, int64_t bytes);

  SpillStats Stats() const;
  void ResetPeak();
  std::string problem() const;  // of the last failed Allocate()
  const char* engine() const { return uses_io_uring_ ? "io_uring" : "threads"; }
  const std::string& folder() const { return file_->path(); }

 private:
  struct Extent {
    int64_t bytes = 0;  // whole blocks
    std::vector<SpillPiece> pieces;
  };

  SpillFile(std::unique_ptr<DirectFile> file, int64_t limit_bytes, const SpillOptions& options);

  std::string SelfTest();
  std::string Grow(int64_t bytes);
  std::string Move(bool write, int64_t offset, char* data, int64_t bytes);
  std::shared_ptr<Extent> Find(int64_t offset, int64_t bytes, size_t* first_piece) const;
  std::string InForkedProcess() const;

  const std::unique_ptr<DirectFile> file_;
  const SpillOptions options_;
  const pid_t process_;
  bool uses_io_uring_ = false;

  mutable std::mutex mu_;
  Extents free_;
  std::map<int64_t, std::shared_ptr<Extent>> extents_;  // by offset
  SpillStats stats_;
  std::string problem_;

  std::unique_ptr<SpillLanes> lanes_;  // null until SelfTest() has passed
};

}  // namespace tfswap

#endif  // TFSWAP_CC_CORE_SPILL_SPILL_FILE_H_
