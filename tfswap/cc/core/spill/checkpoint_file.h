#ifndef TFSWAP_CC_CORE_SPILL_CHECKPOINT_FILE_H_
#define TFSWAP_CC_CORE_SPILL_CHECKPOINT_FILE_H_

#include <sys/types.h>

#include <cstdint>
#include <memory>
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

  // Block until the bytes are read, and verify them by their checksums. Return an error message or
  // "".
  std::string Read(int64_t offset, char* data, int64_t bytes, std::vector<SpillPiece> pieces);
  // Return whether the file has these bytes now. Reads through the page cache, which usually has
  // what was just loaded.
  bool Has(int64_t offset, const char* data, int64_t bytes) const;

 private:
  CheckpointFile(std::unique_ptr<DirectFile> file, int cached);
  bool Prepare();

  const std::unique_ptr<DirectFile> file_;
  const int cached_;  // the same file, without O_DIRECT
  const pid_t process_;
  std::unique_ptr<SpillLanes> lanes_;
};

// A value of a variable in a checkpoint.
class CheckpointValue {
 public:
  // Return the value; null if the file does not hold exactly these bytes at `offset`, or cannot be
  // read in place.
  static std::shared_ptr<const CheckpointValue> Find(const std::string& path, int64_t offset,
                                                     const char* data, int64_t bytes);

  // Keep a value for an op, which takes it by the returned number.
  static int64_t Keep(std::shared_ptr<const CheckpointValue> value);
  // Return the kept value; null for an unknown number.
  static std::shared_ptr<const CheckpointValue> Take(int64_t number);

  int64_t bytes() const { return bytes_; }
  // Read a part that begins at a multiple of SpillFile::kPieceBytes and ends at one or at the end.
  // Return an error message if the part cannot be read, or is not as it was when it was found.
  std::string Read(int64_t begin, void* data, int64_t bytes) const;

 private:
  CheckpointValue(std::shared_ptr<CheckpointFile> file, int64_t offset, int64_t bytes)
      : file_(std::move(file)), offset_(offset), bytes_(bytes) {}

  const std::shared_ptr<CheckpointFile> file_;
  const int64_t offset_;
  const int64_t bytes_;
  std::vector<SpillPiece> pieces_;
};

}  // namespace tfswap

#endif  // TFSWAP_CC_CORE_SPILL_CHECKPOINT_FILE_H_
