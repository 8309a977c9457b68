#ifndef TFSWAP_CC_FAR_FAR_FILE_H_
#define TFSWAP_CC_FAR_FAR_FILE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "core/memory/host_pool.h"
#include "core/spill/spill_file.h"
#include "far/far_counts.h"

namespace tfswap {

// Where a buffer lies in a file, which is there as long as somebody knows such a place.
struct FileExtent {
  std::shared_ptr<SpillFile> file;
  int64_t offset = -1;
};

// The file that is the last tier of far memory, for all devices: who trains opens and closes it.
// Thread-safe.
class FarFile {
 public:
  // The process's.
  static FarFile* Get();

  // Opens one in `folder`, instead of the one before (which stays as long as it holds something).
  // Answers "" or what is wrong. `limit_bytes` 0: none.
  std::string Open(const std::string& folder, int64_t limit_bytes);
  void Close();
  bool IsOpen() const { return file() != nullptr; }

  // Has `write` fill an extent of so many bytes; it answers "" or what went wrong. Whether all is
  // there. If not, the file has nothing of it, and Problem() says why.
  using Write = std::function<std::string(SpillFile* file, int64_t offset)>;
  bool Put(int64_t bytes, const Write& write, FarCounts* counts, FileExtent* extent);
  void Drop(FileExtent* extent, int64_t bytes);

  // What it said when it failed last; "" if it never did since it was opened.
  std::string Problem() const;
  // Why neither it nor host memory took so many bytes more, as a sentence.
  std::string WhyNoRoom(const HostPoolStats& host, int64_t missing_bytes) const;
  SpillStats Stats() const;

 private:
  std::shared_ptr<SpillFile> file() const;

  mutable std::mutex mu_;
  std::shared_ptr<SpillFile> file_;
  std::string problem_;
};

}  // namespace tfswap

#endif  // TFSWAP_CC_FAR_FAR_FILE_H_
