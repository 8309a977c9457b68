#ifndef TFSWAP_CC_FAR_FAR_FILE_H_
#define TFSWAP_CC_FAR_FAR_FILE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "core/memory/host_pool.h"
#include "core/spill/checkpoint_file.h"
#include "core/spill/spill_file.h"
#include "far/far_counts.h"

namespace tfswap {

// The location of a buffer in a spill file or in a checkpoint, which it keeps open.
struct FileExtent {
  std::shared_ptr<SpillFile> file;
  int64_t offset = -1;
  std::shared_ptr<const CheckpointValue> checkpoint;

  // Read a part that begins at a multiple of the piece size; return an error message or "".
  std::string Read(int64_t begin, void* data, int64_t bytes) const {
    return checkpoint != nullptr ? checkpoint->Read(begin, data, bytes)
                                 : file->Read(offset + begin, data, bytes);
  }
};

// The spill file, the last tier of far memory, shared by all devices; a training opens and closes
// it. Thread-safe.
class FarFile {
 public:
  static FarFile* Get();

  // Open a file in `folder` in place of the current one, which stays open as long as it holds
  // buffers. Return an error message or "". `limit_bytes` 0: no limit.
  std::string Open(const std::string& folder, int64_t limit_bytes);
  void Close();
  bool IsOpen() const { return file() != nullptr; }
  // Return whether the file at `path` is on the disk of the spill file, so that it is as fast.
  bool SharesDiskWith(const std::string& path) const;

  // Allocate an extent and fill it with `write`, which returns an error message or "". Return
  // whether that succeeded; if not, nothing is stored, and Problem() returns the reason.
  using Write = std::function<std::string(SpillFile* file, int64_t offset)>;
  bool Put(int64_t bytes, const Write& write, FarCounts* counts, FileExtent* extent);
  void Drop(FileExtent* extent, int64_t bytes);

  // Return the last error since the file was opened, or "".
  std::string Problem() const;
  // Return a sentence that explains why neither host memory nor the file has space for
  // `missing_bytes` more.
  std::string WhyFull(const HostPoolStats& host, int64_t missing_bytes) const;
  SpillStats Stats() const;

 private:
  std::shared_ptr<SpillFile> file() const;

  mutable std::mutex mu_;
  std::shared_ptr<SpillFile> file_;
  std::string problem_;
};

}  // namespace tfswap

#endif  // TFSWAP_CC_FAR_FAR_FILE_H_
