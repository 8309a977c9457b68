#include "far/far_memory.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "core/copy.h"
#include "core/now.h"

namespace tfswap {

namespace {

// Small blocks share these: encoded buffers' chunks do.
constexpr int64_t kArenaBytes = int64_t{4} << 20;

constexpr const char* kTierNames[kFarTiers] = {"host", "compressed", "file"};

// Where a buffer goes that was meant for `tier`, in order.
std::vector<FarTier> WaysFrom(FarTier tier) {
  switch (tier) {
    case FarTier::kHost:
      return {FarTier::kHost, FarTier::kFile};
    case FarTier::kCompressed:
      return {FarTier::kCompressed, FarTier::kFile};
    case FarTier::kFile:
      break;
  }
  return {FarTier::kFile, FarTier::kHost};
}

}  // namespace

const char* FarTierName(FarTier tier) { return kTierNames[static_cast<int>(tier)]; }

bool ParseFarTier(const std::string& name, FarTier* tier) {
  for (int i = 0; i < kFarTiers; ++i) {
    if (name != kTierNames[i]) continue;
    *tier = static_cast<FarTier>(i);
    return true;
  }
  return false;
}

FarMemory::FarMemory() : host_(HostPool::Hooks{nullptr, nullptr, kArenaBytes}), chunks_(&host_) {}

std::string FarMemory::OpenFile(const std::string& folder, int64_t limit_bytes) {
  std::string problem;
  std::shared_ptr<SpillFile> opened = SpillFile::Create(folder, limit_bytes, &problem);
  if (opened == nullptr) return problem;
  std::lock_guard<std::mutex> lock(mu_);
  file_.swap(opened);
  file_problem_.clear();
  return "";
}

void FarMemory::CloseFile() {
  std::shared_ptr<SpillFile> closed;
  std::lock_guard<std::mutex> lock(mu_);
  file_.swap(closed);
}

std::shared_ptr<SpillFile> FarMemory::file() const {
  std::lock_guard<std::mutex> lock(mu_);
  return file_;
}

FarWish FarMemory::Allowed(FarWish wish) const {
  if (wish.tier != FarTier::kCompressed || !IsLossy(wish.codec.codec)) return wish;
  const int most_percent = lossy_rate_.load();
  if (most_percent <= 0) return FarWish();
  wish.codec.rate_percent = std::min(wish.codec.rate_percent, most_percent);
  return wish;
}

bool FarMemory::Put(const void* data, int64_t bytes, const FarWish& wished, FarCopy* copy) {
  const int64_t start_ns = NowNs();
  const FarWish wish = Allowed(wished);
  copy->bytes = bytes;
  bool done = false;
  for (const FarTier tier : WaysFrom(wish.tier)) {
    copy->tier = tier;
    done = PutIn(tier, data, wish, copy);
    if (done) break;
  }
  {
    std::lock_guard<std::mutex> lock(mu_);
    full_ = !done;
  }
  if (!done) {
    *copy = FarCopy();
    return false;
  }
  if (copy->tier != wish.tier) counts_.MovedOn();
  counts_.Out(copy->tier, bytes, copy->far_bytes, NowNs() - start_ns);
  counts_.Kept(copy->tier, copy->far_bytes);
  return true;
}

bool FarMemory::PutIn(FarTier tier, const void* data, const FarWish& wish, FarCopy* copy) {
  switch (tier) {
    case FarTier::kHost:
      copy->block = host_.Allocate(copy->bytes);
      if (copy->block == nullptr) return false;
      CopyPastCache(copy->block, data, copy->bytes);
      copy->far_bytes = copy->bytes;
      return true;
    case FarTier::kCompressed:
      copy->threads = wish.threads;
      copy->lossy = IsLossy(wish.codec.codec);
      if (!Encode(wish.codec, data, static_cast<size_t>(copy->bytes), wish.threads, &chunks_,
                  &copy->encoded)) {
        return false;
      }
      copy->far_bytes = static_cast<int64_t>(copy->encoded.encoded_bytes);
      return true;
    case FarTier::kFile:
      break;
  }
  return PutInFile(data, copy);
}

bool FarMemory::PutInFile(const void* data, FarCopy* copy) {
  std::shared_ptr<SpillFile> file = this->file();
  if (file == nullptr) return false;
  const int64_t offset = file->Allocate(copy->bytes);
  std::string problem = offset < 0 ? file->problem() : file->Write(offset, data, copy->bytes);
  if (!problem.empty()) {
    if (offset >= 0) file->Free(offset, copy->bytes);
    if (offset >= 0) counts_.Failed();
    std::lock_guard<std::mutex> lock(mu_);
    file_problem_ = std::move(problem);
    return false;
  }
  copy->file = std::move(file);
  copy->lossy = false;
  copy->offset = offset;
  copy->far_bytes = copy->bytes;
  return true;
}

std::string FarMemory::Get(const FarCopy& copy, void* data) {
  const int64_t start_ns = NowNs();
  std::string problem;
  switch (copy.tier) {
    case FarTier::kHost:
      CopyPastCache(data, copy.block, copy.bytes);
      break;
    case FarTier::kCompressed:
      if (!Decode(copy.encoded, data, copy.threads)) {
        problem = "what was encoded cannot be decoded: suspect the host's memory";
      }
      break;
    case FarTier::kFile:
      problem = copy.file->Read(copy.offset, data, copy.bytes);
      break;
  }
  counts_.In(copy.tier, copy.bytes, NowNs() - start_ns);
  return problem;
}

void FarMemory::Drop(FarCopy* copy) {
  if (!copy->held()) return;
  switch (copy->tier) {
    case FarTier::kHost:
      host_.Free(copy->block, copy->bytes);
      break;
    case FarTier::kCompressed:
      Release(&copy->encoded, &chunks_);
      break;
    case FarTier::kFile:
      copy->file->Free(copy->offset, copy->bytes);
      break;
  }
  counts_.Dropped(copy->tier, copy->far_bytes);
  *copy = FarCopy();
}

std::string FarMemory::Hindrance() const {
  const HostPoolStats host = host_.Stats();
  std::lock_guard<std::mutex> lock(mu_);
  if (!full_) return "";
  const std::string text = WhyFull(host);
  if (file_ == nullptr) return text + ", or give a spill_dir on a disk.";
  return text + ". The file tier took no more either" +
         (file_problem_.empty() ? "." : ": " + file_problem_);
}

std::string FarMemory::FileProblem() const {
  std::lock_guard<std::mutex> lock(mu_);
  return file_problem_;
}

SpillStats FarMemory::FileStats() const {
  const std::shared_ptr<SpillFile> file = this->file();
  return file == nullptr ? SpillStats() : file->Stats();
}

void FarMemory::ResetStats() {
  host_.ResetPeak();
  counts_.Reset();
}

void FarMemory::InjectFileFault(const std::string& kind) {
  if (const std::shared_ptr<SpillFile> file = this->file()) file->InjectFault(kind);
}

}  // namespace tfswap
