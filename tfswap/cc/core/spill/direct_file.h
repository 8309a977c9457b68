#ifndef TFSWAP_CC_CORE_SPILL_DIRECT_FILE_H_
#define TFSWAP_CC_CORE_SPILL_DIRECT_FILE_H_

#include <cstdint>
#include <memory>
#include <string>

namespace tfswap {

// "No space left on device (errno 28)".
std::string ErrorText(int64_t error);

// A file without a name, whose reads and writes go past the page cache. What goes wrong with it is
// said as people can act on it.
class DirectFile {
 public:
  // Of mode 0600 in `folder`. Null where there can be none; `*problem` then says why.
  static std::unique_ptr<DirectFile> Open(const std::string& folder, std::string* problem);
  ~DirectFile();
  DirectFile(const DirectFile&) = delete;
  DirectFile& operator=(const DirectFile&) = delete;

  // Asks the file system for its alignment, which has to go into `piece_bytes` evenly. The problem,
  // or none.
  std::string Align(int64_t piece_bytes);
  // From `before` bytes to `bytes`, with room on the disk. 0 or errno; then it is as long as it
  // was.
  int Resize(int64_t before, int64_t bytes);
  int64_t FreeDiskBytes() const;
  // Why there is no spill file here, if it is for want of O_DIRECT.
  std::string NoDirectIo(const std::string& why) const;

  int handle() const { return handle_; }
  const std::string& folder() const { return folder_; }
  int64_t block_bytes() const { return block_bytes_; }
  // Of memory that is read and written straight.
  int64_t memory_alignment() const { return memory_alignment_; }

 private:
  DirectFile(std::string folder, int handle);

  const std::string folder_;
  const int handle_;
  int64_t block_bytes_ = 4096;
  int64_t memory_alignment_ = 4096;
};

}  // namespace tfswap

#endif  // TFSWAP_CC_CORE_SPILL_DIRECT_FILE_H_
