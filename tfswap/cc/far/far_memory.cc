#include "far/far_memory.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "core/memory/copy.h"
#include "core/util/faults.h"
#include "core/util/now.h"

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

// Of what a copy has in host memory, counted from its first one and around; a file has its own.
void FlipBit(const FarCopy& copy, int64_t bit) {
  const auto bytes = copy.tier == FarTier::kFile ? 0 : static_cast<size_t>(copy.far_bytes);
  if (bytes == 0) return;
  const auto flip = [bit](char* byte) { *byte ^= static_cast<char>(1 << bit % 8); };
  size_t at = static_cast<size_t>(bit / 8) % bytes;
  if (copy.tier == FarTier::kHost) return flip(static_cast<char*>(copy.block) + at);
  const EncodedBuffer& encoded = copy.encoded;
  for (const EncodedBuffer::Section& section : encoded.sections) {
    if (at >= section.encoded_bytes) {
      at -= section.encoded_bytes;
      continue;
    }
    const size_t place = section.offset + at, end = encoded.chunk_bytes;
    return flip(place < end ? encoded.chunks[section.chunk] + place
                            : encoded.chunks[section.rest] + place - end);
  }
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

FarMemory::FarMemory(FarFile* file)
    : file_(file), host_(HostPool::Hooks{nullptr, nullptr, kArenaBytes}), chunks_(&host_) {}

PlacementRequest FarMemory::Allowed(PlacementRequest wish) const {
  if (wish.tier != FarTier::kCompressed || !IsLossy(wish.codec.codec)) return wish;
  const int most_percent = lossy_rate_.load();
  if (most_percent <= 0) return PlacementRequest();
  wish.codec.rate_percent = std::min(wish.codec.rate_percent, most_percent);
  return wish;
}

bool FarMemory::Put(const void* data, int64_t bytes, const PlacementRequest& wished,
                    FarCopy* copy) {
  const int64_t start_ns = NowNs();
  const PlacementRequest wish = Allowed(wished);
  copy->bytes = bytes;
  bool done = false;
  for (const FarTier tier : WaysFrom(wish.tier)) {
    copy->tier = tier;
    done = PutIn(tier, data, wish, copy);
    if (done) break;
  }
  full_.store(!done);
  if (!done) {
    *copy = FarCopy();
    return false;
  }
  if (copy->tier != wish.tier) counts_.MovedOn();
  counts_.Out(copy->tier, bytes, copy->far_bytes, NowNs() - start_ns);
  counts_.Kept(copy->tier, copy->far_bytes);
  return true;
}

bool FarMemory::PutIn(FarTier tier, const void* data, const PlacementRequest& wish, FarCopy* copy) {
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
  const auto write = [&](SpillFile* file, int64_t offset) {
    return file->Write(offset, data, copy->bytes);
  };
  if (!file_->Put(copy->bytes, write, &counts_, &copy->extent)) return false;
  copy->lossy = false;
  copy->far_bytes = copy->bytes;
  return true;
}

FarProblem FarMemory::Get(const FarCopy& copy, void* data) {
  const int64_t start_ns = NowNs();
  FarProblem problem;
  if (Faults::Strikes(Fault::kBitFlip)) FlipBit(copy, Faults::Get()->bit(Fault::kBitFlip));
  switch (copy.tier) {
    case FarTier::kHost:
      CopyPastCache(data, copy.block, copy.bytes);
      break;
    case FarTier::kCompressed:
      if (!Decode(copy.encoded, data, copy.threads)) {
        problem = {"what was encoded cannot be decoded", /*changed=*/true};
      }
      break;
    case FarTier::kFile:
      problem.why = copy.extent.file->Read(copy.extent.offset, data, copy.bytes);
      break;
  }
  counts_.In(copy.tier, copy.bytes, NowNs() - start_ns);
  return problem;
}

void FarMemory::Drop(FarCopy* copy) {
  if (!copy->held()) return;
  if (!copy->sections.empty()) {
    for (FarCopy& section : copy->sections) Drop(&section);
    *copy = FarCopy();
    return;
  }
  switch (copy->tier) {
    case FarTier::kHost:
      host_.Free(copy->block, copy->bytes);
      break;
    case FarTier::kCompressed:
      Release(&copy->encoded, &chunks_);
      break;
    case FarTier::kFile:
      file_->Drop(&copy->extent, copy->bytes);
      break;
  }
  counts_.Dropped(copy->tier, copy->far_bytes);
  *copy = FarCopy();
}

std::string FarMemory::WhyBlocked(int64_t missing_bytes) const {
  return full_.load() ? file_->WhyNoRoom(host_.Stats(), missing_bytes) : "";
}

void FarMemory::ResetStats() {
  host_.ResetPeak();
  counts_.Reset();
}

}  // namespace tfswap
