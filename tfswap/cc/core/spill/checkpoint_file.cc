#include "core/spill/checkpoint_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <mutex>
#include <tuple>
#include <utility>

#include "core/memory/copy.h"
#include "core/util/rounding.h"

namespace tfswap {

namespace {

struct Identity {
  dev_t device = 0;
  ino_t number = 0;
  timespec changed = {};

  bool operator<(const Identity& other) const {
    return std::tie(device, number, changed.tv_sec, changed.tv_nsec) <
           std::tie(other.device, other.number, other.changed.tv_sec, other.changed.tv_nsec);
  }
};

struct OpenFiles {
  std::mutex mu;
  std::map<Identity, std::weak_ptr<CheckpointFile>> files;
};

struct KeptValues {
  std::mutex mu;
  std::map<int64_t, std::shared_ptr<const CheckpointValue>> values;
  int64_t last = 0;
};

KeptValues& Kept() {
  static auto* const kept = new KeptValues();
  return *kept;
}

}  // namespace

CheckpointFile::CheckpointFile(std::unique_ptr<DirectFile> file, int cached)
    : file_(std::move(file)), cached_(cached), process_(getpid()) {
  fstat(cached_, &opened_);
}

CheckpointFile::~CheckpointFile() {
  close(cached_);
  // A forked process has neither their threads nor their rings.
  if (getpid() != process_) static_cast<void>(lanes_.release());
}

std::shared_ptr<CheckpointFile> CheckpointFile::Open(const std::string& path) {
  static auto* const open_files = new OpenFiles();
  struct stat status;
  if (stat(path.c_str(), &status) != 0 || !S_ISREG(status.st_mode)) return nullptr;
  const std::lock_guard<std::mutex> lock(open_files->mu);
  auto& known = open_files->files[{status.st_dev, status.st_ino, status.st_mtim}];
  if (std::shared_ptr<CheckpointFile> file = known.lock()) return file;
  std::unique_ptr<DirectFile> file = DirectFile::OpenCheckpoint(path);
  const int cached = file == nullptr ? -1 : open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (cached < 0) return nullptr;
  std::shared_ptr<CheckpointFile> opened(new CheckpointFile(std::move(file), cached));
  if (!opened->Prepare()) return nullptr;
  known = opened;
  return opened;
}

bool CheckpointFile::Prepare() {
  if (!file_->Align(kSpillPieceBytes).empty()) return false;
  for (const bool io_uring : {true, false}) {
    std::unique_ptr<SpillLane> lane = SpillLane::Make(file_->handle(), io_uring);
    if (lane == nullptr) continue;
    char first = 0;
    std::vector<SpillPiece> pieces(1);
    const SpillTransfer read{/*write=*/false, /*checksums=*/false, /*offset=*/0, &first, 1};
    if (!RunTransfer(read, *file_, lane.get(), &pieces).empty()) continue;
    lanes_ = std::make_unique<SpillLanes>(file_->handle(), io_uring, std::move(lane));
    return true;
  }
  return false;
}

std::string CheckpointFile::Read(int64_t offset, char* data, int64_t bytes,
                                 std::vector<SpillPiece>* pieces) {
  if (getpid() != process_) {
    return file_->name() + " was opened by process " + std::to_string(process_) +
           ", from which this one was forked: load the weights in this process";
  }
  const bool all_known = std::all_of(pieces->begin(), pieces->end(),
                                     [](const SpillPiece& piece) { return piece.bytes > 0; });
  std::unique_ptr<SpillLane> lane = lanes_->Take();
  std::string error = RunTransfer({/*write=*/false, /*checksums=*/all_known, offset, data, bytes},
                                  *file_, lane.get(), pieces);
  lanes_->Release(std::move(lane));
  if (all_known || !error.empty()) return error;
  for (size_t i = 0; i < pieces->size(); ++i) {
    const auto begin = static_cast<int64_t>(i) * kSpillPieceBytes;
    const int64_t piece_bytes = std::min(kSpillPieceBytes, bytes - begin);
    const SpillPiece read{piece_bytes, BufferChecksum(data + begin, piece_bytes)};
    SpillPiece* known = &(*pieces)[i];
    const bool differs = known->bytes > 0 && known->checksum != read.checksum;
    if (differs || (known->bytes == 0 && !IsUnchanged())) return Changed();
    *known = read;
  }
  return "";
}

bool CheckpointFile::IsUnchanged() const {
  struct stat now = {};
  return fstat(cached_, &now) == 0 && now.st_size == opened_.st_size &&
         now.st_mtim.tv_sec == opened_.st_mtim.tv_sec &&
         now.st_mtim.tv_nsec == opened_.st_mtim.tv_nsec;
}

std::string CheckpointFile::Changed() const {
  return "the contents of " + file_->name() + " are not the ones that were loaded. " +
         file_->words().if_changed;
}

bool CheckpointFile::Has(int64_t offset, const char* data, int64_t bytes) const {
  char block[64 << 10];
  for (int64_t done = 0; done < bytes;) {
    const auto wanted = static_cast<size_t>(std::min<int64_t>(sizeof(block), bytes - done));
    const ssize_t got = pread(cached_, block, wanted, offset + done);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0 || std::memcmp(block, data + done, static_cast<size_t>(got)) != 0) return false;
    done += got;
  }
  return true;
}

std::shared_ptr<const CheckpointValue> CheckpointValue::Find(const std::string& path,
                                                             int64_t offset, int64_t bytes,
                                                             const char* data,
                                                             int64_t known_bytes) {
  if (offset < 0 || known_bytes <= 0 || known_bytes > bytes) return nullptr;
  std::shared_ptr<CheckpointFile> file = CheckpointFile::Open(path);
  if (file == nullptr) return nullptr;
  std::shared_ptr<CheckpointValue> value(new CheckpointValue(std::move(file), offset, bytes));
  if (!value->file_->Spans(offset + bytes)) return nullptr;
  for (int64_t begin = 0; begin < bytes; begin += kSpillPieceBytes) {
    const int64_t piece = std::min(kSpillPieceBytes, bytes - begin);
    const int64_t known = std::min(piece, known_bytes - begin);
    if (known > 0 && !value->file_->Has(offset + begin, data + begin, known)) return nullptr;
    const bool all = known == piece;
    value->pieces_.push_back(
        {all ? piece : 0, all ? BufferChecksum(data + begin, piece) : uint64_t{0}});
  }
  return value;
}

int64_t CheckpointValue::Keep(std::shared_ptr<const CheckpointValue> value) {
  const std::lock_guard<std::mutex> lock(Kept().mu);
  Kept().values.emplace(++Kept().last, std::move(value));
  return Kept().last;
}

std::shared_ptr<const CheckpointValue> CheckpointValue::Take(int64_t number) {
  const std::lock_guard<std::mutex> lock(Kept().mu);
  const auto kept = Kept().values.extract(number);
  return kept.empty() ? nullptr : kept.mapped();
}

std::string CheckpointValue::Read(int64_t begin, void* data, int64_t bytes) const {
  const int64_t first = begin / kSpillPieceBytes;
  const int64_t count = RoundUp(bytes, kSpillPieceBytes) / kSpillPieceBytes;
  std::vector<SpillPiece> pieces;
  {
    const std::lock_guard<std::mutex> lock(mu_);
    pieces.assign(pieces_.begin() + first, pieces_.begin() + first + count);
  }
  std::string error = file_->Read(offset_ + begin, static_cast<char*>(data), bytes, &pieces);
  if (error.empty()) {
    const std::lock_guard<std::mutex> lock(mu_);
    std::copy(pieces.begin(), pieces.end(), pieces_.begin() + first);
  }
  return error;
}

}  // namespace tfswap
