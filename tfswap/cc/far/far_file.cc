#include "far/far_file.h"

#include <sys/stat.h>

#include <utility>

namespace tfswap {

FarFile* FarFile::Get() {
  static auto* file = new FarFile();
  return file;
}

std::string FarFile::Open(const std::string& folder, int64_t limit_bytes) {
  std::string problem;
  std::shared_ptr<SpillFile> opened = SpillFile::Create(folder, limit_bytes, &problem);
  if (opened == nullptr) return problem;
  std::lock_guard<std::mutex> lock(mu_);
  file_.swap(opened);
  problem_.clear();
  return "";
}

void FarFile::Close() {
  std::shared_ptr<SpillFile> closed;
  std::lock_guard<std::mutex> lock(mu_);
  file_.swap(closed);
}

bool FarFile::SharesDiskWith(const std::string& path) const {
  const std::shared_ptr<SpillFile> file = this->file();
  struct stat ours, theirs;
  return file != nullptr && stat(file->folder().c_str(), &ours) == 0 &&
         stat(path.c_str(), &theirs) == 0 && ours.st_dev == theirs.st_dev;
}

std::shared_ptr<SpillFile> FarFile::file() const {
  std::lock_guard<std::mutex> lock(mu_);
  return file_;
}

bool FarFile::Put(int64_t bytes, const Write& write, FarCounts* counts, FileExtent* extent) {
  std::shared_ptr<SpillFile> file = this->file();
  if (file == nullptr) return false;
  const int64_t offset = file->Allocate(bytes);
  std::string problem = offset < 0 ? file->problem() : write(file.get(), offset);
  if (!problem.empty()) {
    if (offset >= 0) {
      file->Free(offset, bytes);
      counts->AddError();
    }
    std::lock_guard<std::mutex> lock(mu_);
    problem_ = std::move(problem);
    return false;
  }
  *extent = {std::move(file), offset};
  return true;
}

void FarFile::Drop(FileExtent* extent, int64_t bytes) {
  if (extent->file != nullptr) extent->file->Free(extent->offset, bytes);
  *extent = FileExtent();
}

std::string FarFile::Problem() const {
  std::lock_guard<std::mutex> lock(mu_);
  return problem_;
}

std::string FarFile::WhyFull(const HostPoolStats& host, int64_t missing_bytes) const {
  const std::string text = ::tfswap::WhyFull(host, missing_bytes);
  std::lock_guard<std::mutex> lock(mu_);
  if (file_ == nullptr) return text + ", or give a spill_dir on a disk.";
  return text + ". The file tier is full as well" + (problem_.empty() ? "." : ": " + problem_);
}

SpillStats FarFile::Stats() const {
  const std::shared_ptr<SpillFile> file = this->file();
  return file == nullptr ? SpillStats() : file->Stats();
}

}  // namespace tfswap
