#include "grappler/remembered_plan.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"

namespace tfswap {

namespace {

absl::Status Unreadable(const std::string& path, const char* why) {
  return absl::InvalidArgumentError(absl::StrCat(path, " was not read: ", why));
}

absl::StatusOr<std::string> ReadOwnFile(const std::string& path) {
  // Without O_NONBLOCK, opening a named pipe waits for its writer.
  const int file = open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  if (file < 0) return Unreadable(path, std::strerror(errno));
  const absl::Cleanup close_file = [file] { close(file); };
  struct stat found;
  if (fstat(file, &found) != 0) return Unreadable(path, std::strerror(errno));
  if (!S_ISREG(found.st_mode) || found.st_uid != getuid() ||
      (found.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
    return Unreadable(path, "it is not a regular file that only this user can write to");
  }
  if (found.st_size > kMaxPlanBytes) return Unreadable(path, "it is too large");
  std::string text(found.st_size, '\0');
  size_t filled = 0;
  while (filled < text.size()) {
    const ssize_t bytes = read(file, text.data() + filled, text.size() - filled);
    if (bytes < 0 && errno == EINTR) continue;
    if (bytes < 0) return Unreadable(path, std::strerror(errno));
    if (bytes == 0) break;  // another process has shortened it
    filled += bytes;
  }
  text.resize(filled);
  return text;
}

}  // namespace

absl::StatusOr<FunctionSpec> ReadRemembered(const std::string& path,
                                            const std::string& fingerprint) {
  const absl::StatusOr<std::string> text = ReadOwnFile(path);
  if (!text.ok()) return text.status();
  return ParseRemembered(*text, fingerprint);
}

}  // namespace tfswap
