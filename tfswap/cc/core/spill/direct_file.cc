#include "core/spill/direct_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <random>
#include <system_error>
#include <utility>

#include "core/util/rounding.h"

namespace tfswap {

namespace {

// The needed part of struct statx; the C library's headers may be older than the kernel.
struct DirectIo {
  uint32_t mask;
  char between[148];
  uint32_t memory_alignment;
  uint32_t offset_alignment;
  char rest[96];
};
static_assert(sizeof(DirectIo) == 256);
constexpr uint32_t kDirectIoAlignment = 0x2000;  // STATX_DIOALIGN

constexpr DirectFileWords kSpillWords = {
    "written",
    "Something between memory and the disk changes data: look at dmesg, and test the disk and the "
    "memory; do not use what was computed from this spill_dir",
    "It was truncated, or its file system is damaged: look at dmesg, or give another spill_dir",
    "The disk or the connection to it fails: look at dmesg, or give another spill_dir"};

// With spill_dir on another disk, values are copied there (FarFile::SharesDiskWith).
constexpr DirectFileWords kCheckpointWords = {
    "loaded",
    "The file was changed while the model still reads its weights from it: load the weights again. "
    "Replace such a file (write a new one and rename it) instead of overwriting it",
    "The file was truncated while the model still reads its weights from it: load the weights "
    "again from an intact file",
    "The disk or the connection to it fails: look at dmesg, or load the weights from another disk"};

// Query the alignment; return false if the file system does not report it.
bool QueryAlignment(int file, DirectIo* direct_io) {
  *direct_io = {};
#if defined(SYS_statx)
  return syscall(SYS_statx, file, "", AT_EMPTY_PATH, kDirectIoAlignment, direct_io) == 0 &&
         (direct_io->mask & kDirectIoAlignment) != 0;
#else
  return false;
#endif
}

// Open an unnamed file; return -errno on failure.
int OpenUnnamed(const std::string& folder, int flags) {
  flags |= O_RDWR | O_CLOEXEC;
#if defined(O_TMPFILE)
  const int file = open(folder.c_str(), flags | O_TMPFILE | O_EXCL, 0600);
  if (file >= 0) return file;
  if (errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL) return -errno;
#endif
  // Without O_TMPFILE, create a file and unlink it.
  std::random_device dice;
  for (int tries = 0;; ++tries) {
    const std::string path = folder + "/.tfswap-spill-" + std::to_string(getpid()) + "-" +
                             std::to_string(dice()) + std::to_string(dice());
    const int named = open(path.c_str(), flags | O_CREAT | O_EXCL, 0600);
    const int error = errno;
    if (named < 0 && error == EEXIST && tries < 100) continue;
    // Some file systems create the file and then reject O_DIRECT.
    if (named >= 0 || error == EINVAL) unlink(path.c_str());
    return named >= 0 ? named : -error;
  }
}

std::string NoDirectIoMessage(const std::string& folder, const std::string& why) {
  return "no spill file in " + folder + ": " + why +
         ", so swapped-out data would stay in memory. Give another spill_dir, on a disk with a "
         "file system that has O_DIRECT (ext4 and XFS do)";
}

std::string OpenErrorMessage(const std::string& folder, int error) {
  if (error == EINVAL) {
    const int cached = OpenUnnamed(folder, 0);
    if (cached >= 0) {
      close(cached);
      return NoDirectIoMessage(folder, "its file system refuses O_DIRECT");
    }
  }
  return "no spill file in " + folder + ": " + ErrorText(error) +
         ". Give a spill_dir that exists and is writable";
}

}  // namespace

std::string ErrorText(int64_t error) {
  return std::system_category().message(static_cast<int>(error)) + " (errno " +
         std::to_string(error) + ")";
}

std::unique_ptr<DirectFile> DirectFile::Open(const std::string& folder, std::string* problem) {
  const int handle = OpenUnnamed(folder, O_DIRECT);
  if (handle < 0) {
    *problem = OpenErrorMessage(folder, -handle);
    return nullptr;
  }
  return std::unique_ptr<DirectFile>(new DirectFile(folder, handle, /*is_checkpoint=*/false));
}

std::unique_ptr<DirectFile> DirectFile::OpenCheckpoint(const std::string& path) {
  const int handle = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_DIRECT);
  if (handle < 0) return nullptr;
  return std::unique_ptr<DirectFile>(new DirectFile(path, handle, /*is_checkpoint=*/true));
}

DirectFile::DirectFile(std::string path, int handle, bool is_checkpoint)
    : path_(std::move(path)), handle_(handle), is_checkpoint_(is_checkpoint) {}

DirectFile::~DirectFile() { close(handle_); }

std::string DirectFile::Align(int64_t piece_bytes) {
  DirectIo direct_io;
  if (QueryAlignment(handle_, &direct_io)) {
    if (direct_io.offset_alignment == 0) {
      return NoDirectIo("its file system has no O_DIRECT for files of its kind");
    }
    block_bytes_ = RoundUp(std::max<int64_t>(block_bytes_, direct_io.offset_alignment),
                           direct_io.offset_alignment);
    memory_alignment_ = std::max<int64_t>(direct_io.memory_alignment, 1);
  }
  if (piece_bytes % block_bytes_ != 0 || piece_bytes % memory_alignment_ != 0) {
    return NoDirectIo("its file system reads and writes blocks of " + std::to_string(block_bytes_) +
                      " bytes, from memory at " + std::to_string(memory_alignment_));
  }
  return "";
}

int DirectFile::Resize(int64_t before, int64_t bytes) {
  int error;
  do {
    error = fallocate(handle_, 0, before, bytes - before) == 0 ? 0 : errno;
  } while (error == EINTR);
  if (error == EOPNOTSUPP || error == ENOSYS) {
    // The file system cannot preallocate; check at least the free space.
    error = FreeDiskBytes() < bytes - before ? ENOSPC : ftruncate(handle_, bytes) == 0 ? 0 : errno;
  }
  // A part may have been allocated.
  if (error != 0 && ftruncate(handle_, before) != 0) return errno;
  return error;
}

int64_t DirectFile::FreeDiskBytes() const {
  struct statvfs disk;
  if (fstatvfs(handle_, &disk) != 0) return 0;
  return static_cast<int64_t>(disk.f_bavail) * static_cast<int64_t>(disk.f_frsize);
}

std::string DirectFile::NoDirectIo(const std::string& why) const {
  return NoDirectIoMessage(path_, why);
}

std::string DirectFile::name() const {
  return is_checkpoint_ ? "the checkpoint " + path_ : "the spill file in " + path_;
}

const DirectFileWords& DirectFile::words() const {
  return is_checkpoint_ ? kCheckpointWords : kSpillWords;
}

}  // namespace tfswap
