#ifndef TFSWAP_CC_CORE_SPILL_CHECKPOINT_FILE_H_
#define TFSWAP_CC_CORE_SPILL_CHECKPOINT_FILE_H_

#include <sys/stat.h>
#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "core/spill/direct_file.h"
#include "core/spill/spill_lanes.h"
#include "core/spill/spill_transfer.h"

namespace tfswap {

// A file of the user's from which weights were loaded. It is kept open, so that it may be renamed
// or deleted; it is never written. Thread-safe.
class CheckpointFile {
 public:
  // Return the file, shared by all callers as long as it is the same file; null if it cannot be
  // read with O_DIRECT.
  static std::shared_ptr<CheckpointFile> Open(const std::string& path);
  ~CheckpointFile();
  CheckpointFile(const CheckpointFile&) = delete;
  CheckpointFile& operator=(const CheckpointFile&) = delete;

  // Block until the bytes are read. Verify the pieces that have checksums, and give the others
  // theirs if the file is the one that was opened. Return an error message or "".
  std::string Read(int64_t offset, char* data, int64_t bytes, std::vector<SpillPiece>* pieces);
  // Return whether the file has these bytes now. Reads through the page cache, which usually has
  // what was just loaded.
  bool Has(int64_t offset, const char* data, int64_t bytes) const;
  bool Spans(int64_t bytes) const { return opened_.st_size >= bytes; }

 private:
  CheckpointFile(std::unique_ptr<DirectFile> file, int cached);
  bool Prepare();
  bool IsUnchanged() const;
  std::string Changed() const;

  const std::unique_ptr<DirectFile> file_;
  const int cached_;  // the same file, without O_DIRECT
  struct stat opened_ = {};
  const pid_t process_;
  std::unique_ptr<SpillLanes> lanes_;
};

// A value of a variable in a checkpoint.
class CheckpointValue {
 public:
  // Return the value of `bytes` bytes at `offset`; null if its first `known_bytes` bytes are not
  // `data`, or if the file cannot be read in place.
  static std::shared_ptr<const CheckpointValue> Find(const std::string& path, int64_t offset,
                                                     int64_t bytes, const char* data,
                                                     int64_t known_bytes);

  // Keep a value for an op, which takes it by the returned number.
  static int64_t Keep(std::shared_ptr<const CheckpointValue> value);
  // Return the kept value; null for an unknown number.
  static std::shared_ptr<const CheckpointValue> Take(int64_t number);

  int64_t bytes() const { return bytes_; }
  // Read a part that begins at a multiple of SpillFile::kPieceBytes and ends at one or at the end.
  // Return an error message if the part cannot be read, or has changed since it was known or first
  // read.
  std::string Read(int64_t begin, void* data, int64_t bytes) const;

 private:
  CheckpointValue(std::shared_ptr<CheckpointFile> file, int64_t offset, int64_t bytes)
      : file_(std::move(file)), offset_(offset), bytes_(bytes) {}

  const std::shared_ptr<CheckpointFile> file_;
  const int64_t offset_;
  const int64_t bytes_;
  mutable std::mutex mu_;
  mutable std::vector<SpillPiece> pieces_;  // of 0 bytes: not read yet
};

}  // namespace tfswap

#endif  // TFSWAP_CC_CORE_SPILL_CHECKPOINT_FILE_H_
