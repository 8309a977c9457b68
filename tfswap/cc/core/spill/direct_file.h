#ifndef TFSWAP_CC_CORE_SPILL_DIRECT_FILE_H_
#define TFSWAP_CC_CORE_SPILL_DIRECT_FILE_H_

#include <cstdint>
#include <memory>
#include <string>

namespace tfswap {

// "No space left on device (errno 28)".
std::string ErrorText(int64_t error);

// An unnamed file that is read and written with O_DIRECT, past the page cache. Error messages say
// what the user can do.
class DirectFile {
 public:
  // Create a file of mode 0600 in `folder`; on failure return null and set `*problem`.
  static std::unique_ptr<DirectFile> Open(const std::string& folder, std::string* problem);
  ~DirectFile();
  DirectFile(const DirectFile&) = delete;
  DirectFile& operator=(const DirectFile&) = delete;

  // Query the alignment of the file system, of which `piece_bytes` must be a multiple. Return an
  // error message or "".
  std::string Align(int64_t piece_bytes);
  // Grow from `before` to `bytes` bytes and allocate the disk space. Return 0 or errno; on failure
  // the size is unchanged.
  int Resize(int64_t before, int64_t bytes);
  int64_t FreeDiskBytes() const;
  // Return the error message for a file system without O_DIRECT.
  std::string NoDirectIo(const std::string& why) const;

  int handle() const { return handle_; }
  const std::string& folder() const { return folder_; }
  int64_t block_bytes() const { return block_bytes_; }
  // The required alignment of memory.
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
