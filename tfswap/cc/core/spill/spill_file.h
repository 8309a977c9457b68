// Far memory in a file.
//
//   caller's memory   |  piece 0  |  piece 1  |  piece 2  | rest |      1 MiB each
//                         |           |           |          |
//   in flight             v           v           v          v          several at once, no cache
//   the file     ...|     extent, whole blocks                    |...
//
// Reads and writes go past the page cache, straight from and into the caller's memory where the
// file can take it; a rest that is not a whole block, and memory that begins anywhere, go through
// blocks of our own. Each piece has a checksum in memory, worked out while it is being written and
// looked at while later ones are being read, so that a disk that gives back something else is an
// error, never a wrong tensor.
//
// The file has no name from its birth: however the process ends, nothing stays on the disk.

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
  bool io_uring = true;  // where it is allowed; else, and where it is not, threads
};

struct SpillStats {
  int64_t bytes_in_use = 0;  // whole blocks
  int64_t peak_bytes_in_use = 0;
  int64_t file_bytes = 0;   // what the disk gives; counted against the limit
  int64_t limit_bytes = 0;  // 0: none
  int64_t bytes_written = 0;
  int64_t bytes_read = 0;
  int64_t write_ns = 0;  // spent in Write(), by all callers together
  int64_t read_ns = 0;
};

// Thread-safe; several may write and read at once, each its own extents. Not for forked processes:
// there everything answers with an error, and the file stays the parent's.
class SpillFile {
 public:
  static constexpr int64_t kPieceBytes = kSpillPieceBytes;

  // A file of mode 0600 in `folder`; 0 is no limit. Null where there can be none, or none past the
  // page cache; `*problem` then says why and what to do.
  static std::unique_ptr<SpillFile> Create(const std::string& folder, int64_t limit_bytes,
                                           std::string* problem, const SpillOptions& options = {});
  ~SpillFile();
  SpillFile(const SpillFile&) = delete;
  SpillFile& operator=(const SpillFile&) = delete;

  // The offset of an extent of `bytes` bytes, for which the disk has room from now on; -1 if the
  // limit is reached or the disk is full, and problem() says so.
  int64_t Allocate(int64_t bytes);
  void Free(int64_t offset, int64_t bytes);

  // Return when all is done, and nothing is in flight whatever has gone wrong; the error's text, or
  // none. `offset` is an extent's, or whole pieces into it; reads are of what was written there,
  // whole pieces or up to its end.
  std::string Write(int64_t offset, const void* data, int64_t bytes);
  std::string Read(int64_t offset, void* data, int64_t bytes);

  SpillStats Stats() const;
  void ResetPeak();
  std::string problem() const;  // of the last Allocate() that answered -1
  const char* engine() const { return uses_io_uring_ ? "io_uring" : "threads"; }
  const std::string& folder() const { return file_->folder(); }

 private:
  struct Extent {
    int64_t bytes = 0;  // whole blocks
    std::vector<SpillPiece> pieces;
  };

  SpillFile(std::unique_ptr<DirectFile> file, int64_t limit_bytes, const SpillOptions& options);

  std::string TryOut();
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

  std::unique_ptr<SpillLanes> lanes_;  // null until it is tried out
};

}  // namespace tfswap

#endif  // TFSWAP_CC_CORE_SPILL_SPILL_FILE_H_
