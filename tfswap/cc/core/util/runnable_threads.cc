#include "core/util/runnable_threads.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>

namespace tfswap {

namespace {

// Parse the state from "<number> (<name, of any characters>) <state> ...".
char StateOf(const std::string& thread) {
  const int file = open(("/proc/self/task/" + thread + "/stat").c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return 0;  // the thread has ended
  char text[128];
  const ssize_t size = read(file, text, sizeof(text) - 1);
  close(file);
  if (size <= 0) return 0;
  text[size] = 0;
  const char* name_end = std::strrchr(text, ')');
  return name_end != nullptr && name_end[1] == ' ' ? name_end[2] : 0;
}

}  // namespace

bool OthersAreRunnable() {
  const std::unique_ptr<DIR, int (*)(DIR*)> threads(opendir("/proc/self/task"), &closedir);
  if (threads == nullptr) return false;
  const auto own = static_cast<long>(syscall(SYS_gettid));
  while (const dirent* thread = readdir(threads.get())) {
    if (thread->d_name[0] == '.' || std::atol(thread->d_name) == own) continue;
    const char state = StateOf(thread->d_name);
    if (state == 'R' || state == 'D') return true;
  }
  return false;
}

}  // namespace tfswap
