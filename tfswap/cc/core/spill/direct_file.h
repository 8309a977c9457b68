#ifndef TFSWAP_CC_CORE_SPILL_DIRECT_FILE_H_
#define TFSWAP_CC_CORE_SPILL_DIRECT_FILE_H_

#include <cstdint>
#include <memory>
#include <string>

namespace tfswap {

// "No space left on device (errno 28)".
std::string ErrorText(int64_t error);

// Parts of the error messages of a file: how its data got there, and what the user can do.
struct DirectFileWords {
  const char* stored;
  const char* if_changed;
  const char* if_short;
  const char* if_failed;
};

// A file that is accessed with O_DIRECT, past the page cache: an unnamed spill file, or a
// checkpoint, which is only read.
class DirectFile {
 public:
  // Create a spill file of mode 0600 in `folder`; on failure return null and set `*problem`.
  static std::unique_ptr<DirectFile> Open(const std::string& folder, std::string* problem);
  // Open a checkpoint for reading; null if that fails.
  static std::unique_ptr<DirectFile> OpenCheckpoint(const std::string& path);
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
  // For messages.
  std::string name() const;
  const DirectFileWords& words() const;
  // The folder of a spill file, the path of a checkpoint.
  const std::string& path() const { return path_; }
  int64_t block_bytes() const { return block_bytes_; }
  // The required alignment of memory.
  int64_t memory_alignment() const { return memory_alignment_; }

 private:
  DirectFile(std::string path, int handle, bool is_checkpoint);

  const std::string path_;
  const int handle_;
  const bool is_checkpoint_;
  int64_t block_bytes_ = 4096;
  int64_t memory_alignment_ = 4096;
};

}  // namespace tfswap

#endif  // TFSWAP_CC_CORE_SPILL_DIRECT_FILE_H_
