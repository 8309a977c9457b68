#include "far/far_memory.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>
#include <vector>

#include "core/memory/copy.h"
#include "core/util/faults.h"
#include "core/util/now.h"

namespace tfswap {

namespace {

// Arenas for the chunks of encoded buffers.
constexpr int64_t kArenaBytes = int64_t{4} << 20;

constexpr const char* kTierNames[kFarTiers] = {"host", "compressed", "file"};

// Return the tiers to try for a buffer that was requested for `tier`, in order.
std::vector<FarTier> FallbackTiers(FarTier tier) {
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

// Flip a bit of a copy in host memory; `bit` wraps around. Does nothing for a file, which has its
// own fault.
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

FarCopy InCheckpoint(std::shared_ptr<const CheckpointValue> checkpoint) {
  FarCopy copy;
  copy.tier = FarTier::kFile;
  copy.bytes = checkpoint->bytes();
  copy.extent.checkpoint = std::move(checkpoint);
  return copy;
}

FarMemory::FarMemory(FarFile* file)
    : file_(file), host_(HostPool::System(kArenaBytes)), chunks_(&host_) {}

PlacementRequest FarMemory::Allowed(PlacementRequest request) const {
  if (request.tier != FarTier::kCompressed || !IsLossy(request.codec.codec)) return request;
  const int most_percent = lossy_rate_.load();
  if (most_percent <= 0) request.tier = FarTier::kHost;
  request.codec.rate_percent = std::min(request.codec.rate_percent, most_percent);
  return request;
}

bool FarMemory::Put(const void* data, int64_t bytes, const PlacementRequest& requested,
                    FarCopy* copy) {
  const int64_t start_ns = NowNs();
  const PlacementRequest request = Allowed(requested);
  copy->bytes = bytes;
  bool done = false;
  for (const FarTier tier : FallbackTiers(request.tier)) {
    copy->tier = tier;
    done = PutIn(tier, data, request, copy);
    if (done) break;
  }
  full_.store(!done);
  if (!done) {
    *copy = FarCopy();
    return false;
  }
  if (copy->tier != request.tier) counts_.AddFallback();
  if (copy->extent.checkpoint != nullptr) return true;  // nothing was copied
  counts_.AddOut(copy->tier, bytes, copy->far_bytes, NowNs() - start_ns);
  counts_.AddFarBytes(copy->tier, copy->far_bytes);
  return true;
}

bool FarMemory::PutIn(FarTier tier, const void* data, const PlacementRequest& request,
                      FarCopy* copy) {
  switch (tier) {
    case FarTier::kHost:
      copy->block = host_.Allocate(copy->bytes);
      if (copy->block == nullptr) return false;
      CopyPastCache(copy->block, data, copy->bytes);
      copy->far_bytes = copy->bytes;
      return true;
    case FarTier::kCompressed:
      copy->threads = request.threads;
      copy->lossy = IsLossy(request.codec.codec);
      if (!Encode(request.codec, data, static_cast<size_t>(copy->bytes), request.threads, &chunks_,
                  &copy->encoded)) {
        return false;
      }
      copy->far_bytes = static_cast<int64_t>(copy->encoded.encoded_bytes);
      return true;
    case FarTier::kFile:
      break;
  }
  return PutInFile(data, request, copy);
}

bool FarMemory::PutInFile(const void* data, const PlacementRequest& request, FarCopy* copy) {
  if (request.checkpoint != nullptr) {
    *copy = InCheckpoint(request.checkpoint);
    return true;
  }
  copy->lossy = false;
  const auto write = [&](SpillFile* file, int64_t offset) {
    return file->Write(offset, data, copy->bytes);
  };
  if (!file_->Put(copy->bytes, write, &counts_, &copy->extent)) return false;
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
        problem = {"the encoded buffer cannot be decoded", /*changed=*/true};
      }
      break;
    case FarTier::kFile:
      problem.why = copy.extent.Read(0, data, copy.bytes);
      break;
  }
  counts_.AddIn(copy.tier, copy.bytes, NowNs() - start_ns);
  return problem;
}

std::string FarMemory::GetRows(const FarCopy& copy, int64_t row_bytes,
                               const std::vector<int64_t>& rows, char* output) {
  const int64_t start_ns = NowNs();
  std::vector<size_t> order(rows.size());
  std::iota(order.begin(), order.end(), 0);
  constexpr int64_t kPieceBytes = SpillFile::kPieceBytes;
  std::unique_ptr<char[]> read(copy.tier == FarTier::kFile ? new char[kPieceBytes] : nullptr);
  if (read != nullptr) {  // each piece once
    std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return rows[a] < rows[b]; });
  }
  int64_t read_piece = -1, bytes_in = 0;
  for (const size_t at : order) {
    const int64_t begin = rows[at] * row_bytes, end = begin + row_bytes;
    char* target = output + static_cast<int64_t>(at) * row_bytes;
    for (int64_t from = begin; from < end;) {
      const int64_t piece = from / kPieceBytes, to = std::min(end, (piece + 1) * kPieceBytes);
      const char* source = static_cast<const char*>(copy.block) + from;
      if (read != nullptr) {
        if (piece != read_piece) {
          const int64_t piece_begin = piece * kPieceBytes;
          const int64_t bytes = std::min(kPieceBytes, copy.bytes - piece_begin);
          std::string problem = copy.extent.Read(piece_begin, read.get(), bytes);
          if (!problem.empty()) return problem;
          read_piece = piece;
          bytes_in += bytes;
        }
        source = read.get() + from % kPieceBytes;
      } else {
        bytes_in += to - from;
      }
      std::memcpy(target + (from - begin), source, static_cast<size_t>(to - from));
      from = to;
    }
  }
  counts_.AddIn(copy.tier, bytes_in, NowNs() - start_ns);
  return "";
}

void FarMemory::Drop(FarCopy* copy) {
  if (!copy->held()) return;
  if (!copy->chunks.empty()) {
    for (FarCopy& chunk : copy->chunks) Drop(&chunk);
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
  counts_.AddDrop(copy->tier, copy->far_bytes);
  *copy = FarCopy();
}

std::string FarMemory::WhyBlocked(int64_t missing_bytes) const {
  return full_.load() ? file_->WhyFull(host_.Stats(), missing_bytes) : "";
}

void FarMemory::ResetStats() {
  host_.ResetPeak();
  counts_.Reset();
}

}  // namespace tfswap
