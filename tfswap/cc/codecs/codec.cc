#include "codecs/codec.h"

#include <algorithm>
#include <cstring>

#include "codecs/bfp.h"
#include "codecs/blosc.h"
#include "codecs/codec_path.h"
#include "codecs/sparse.h"
#include "core/memory/copy.h"

namespace tfswap {
namespace {

constexpr const char* kNames[] = {"stored", "zvc", "rle", "csr", "lz4",
                                  "zstd",   "zfp", "bfp", "ans"};
constexpr int kCodecs = sizeof(kNames) / sizeof(kNames[0]);
constexpr size_t kSampleBytes = 4096;

struct Header {
  uint8_t codec;
  uint8_t element_bytes;
  uint8_t rate_percent;
  uint8_t zero;
};
static_assert(sizeof(Header) == kSectionHeaderBytes);

void WriteHeader(const CodecSpec& spec, char* to) {
  const Header header = {static_cast<uint8_t>(spec.codec), static_cast<uint8_t>(spec.element_bytes),
                         static_cast<uint8_t>(spec.rate_percent), 0};
  std::memcpy(to, &header, sizeof(header));
}

// Return the spec as section headers store it.
CodecSpec Normalised(const CodecSpec& spec) {
  CodecSpec normalised = spec;
  normalised.element_bytes = spec.element_bytes == 2 ? 2 : 4;
  const int least_rate = spec.codec == Codec::kBfp ? kMinBfpRate : 1;
  normalised.rate_percent =
      IsLossy(spec.codec) ? std::clamp(spec.rate_percent, least_rate, 100) : 100;
  return normalised;
}

bool AllFinite(const char* from, size_t bytes) {
  uint32_t not_finite = 0;
  for (size_t i = 0; i + 4 <= bytes; i += 4) {
    uint32_t word;
    std::memcpy(&word, from + i, 4);
    not_finite |= (word & 0x7F800000) == 0x7F800000;
  }
  return not_finite == 0;
}

// Return whether eight evenly spaced samples contain no zero. Such a section is stored without
// scanning it, which would cost as much as its copy. Any run of zeros longer than an eighth of the
// section is found.
bool LooksDense(const CodecSpec& spec, const char* from, size_t bytes) {
  constexpr size_t kSpots = 8, kSpotBytes = 256;
  if (bytes < 4 * kSpots * kSpotBytes) return false;
  const size_t step = bytes / kSpots / kGroupWords * kGroupWords;
  for (size_t spot = 0; spot < kSpots; ++spot) {
    if (CountZeroWords(from + spot * step, kSpotBytes, spec.element_bytes) > 0) return false;
  }
  return true;
}

size_t EncodeBody(const CodecSpec& spec, const char* from, size_t bytes, char* to) {
  const size_t capacity = bytes - 1;
  if (spec.codec < Codec::kLz4 && LooksDense(spec, from, bytes)) return 0;
  switch (spec.codec) {
    case Codec::kStored:
      return 0;
    case Codec::kZvc:
      return EncodeZvc(spec.element_bytes, from, bytes, to, capacity);
    case Codec::kRle:
      return EncodeRle(spec.element_bytes, from, bytes, to, capacity);
    case Codec::kCsr:
      return EncodeCsr(spec.element_bytes, from, bytes, to, capacity);
    case Codec::kLz4:
    case Codec::kZstd:
    case Codec::kZfp:
      return EncodeWithBlosc(spec, from, bytes, to, capacity);
    case Codec::kBfp:
      return EncodeBfp(spec.rate_percent, from, bytes, to);
    case Codec::kAns:
      return 0;
  }
  return 0;
}

}  // namespace

const char* CodecName(Codec codec) { return kNames[static_cast<int>(codec)]; }

std::optional<Codec> ParseCodec(std::string_view name) {
  for (int i = 0; i < kCodecs; ++i) {
    if (name == kNames[i]) return static_cast<Codec>(i);
  }
  return std::nullopt;
}

std::string WhyUnusable(const CodecSpec& spec) {
  if (spec.codec < Codec::kLz4) return "";
  if (spec.codec == Codec::kAns) return "ans encodes on GPUs only";
  const std::string name = CodecName(spec.codec);
  if (IsLossy(spec.codec) && spec.element_bytes != 4) {
    return name + " encodes float32 only, and these elements have " +
           std::to_string(spec.element_bytes) +
           " bytes; allowed for them are zvc, rle, csr, lz4, zstd";
  }
  if (IsLossy(spec.codec) && (spec.rate_percent < 1 || spec.rate_percent > 100)) {
    return "the rate of " + name + " must be from 1 to 100 percent; got " +
           std::to_string(spec.rate_percent);
  }
  const bool usable = spec.codec == Codec::kBfp || BloscIsLoaded();
  return usable ? "" : name + " needs c-blosc2's library, which is not loaded";
}

size_t EncodeUnlessStored(const CodecSpec& given, const void* source, size_t bytes, void* target) {
  CodecSpec spec = Normalised(given);
  const char* const from = static_cast<const char*>(source);
  char* const to = static_cast<char*>(target);
  constexpr CodecSpec kExact = {Codec::kZvc, 4, 100};
  // ZFP supports finite numbers only.
  if (spec.codec == Codec::kZfp && !AllFinite(from, bytes)) spec = kExact;
  const bool encodable = bytes > 0 && bytes <= kSectionBytes;
  size_t body = encodable ? EncodeBody(spec, from, bytes, to + kSectionHeaderBytes) : 0;
  if (body == 0 && encodable && spec.codec == Codec::kBfp) {
    spec = kExact;
    body = EncodeBody(spec, from, bytes, to + kSectionHeaderBytes);
  }
  if (body == 0) spec = {Codec::kStored, 4, 100};
  WriteHeader(spec, to);
  return body == 0 ? 0 : body + kSectionHeaderBytes;
}

size_t EncodeSection(const CodecSpec& spec, const void* from, size_t bytes, void* to) {
  const size_t encoded_bytes = EncodeUnlessStored(spec, from, bytes, to);
  if (encoded_bytes != 0) return encoded_bytes;
  if (bytes > 0) std::memcpy(static_cast<char*>(to) + kSectionHeaderBytes, from, bytes);
  return MaxEncodedBytes(bytes);
}

bool DecodeSection(const void* source, size_t encoded_bytes, void* target, size_t bytes,
                   bool past_cache) {
  if (encoded_bytes < kSectionHeaderBytes) return false;
  Header header;
  std::memcpy(&header, source, sizeof(header));
  if (header.codec >= kCodecs || header.zero != 0) return false;
  const CodecSpec spec = {static_cast<Codec>(header.codec), header.element_bytes,
                          header.rate_percent};
  if (!(Normalised(spec) == spec) || spec.codec == Codec::kAns) return false;
  const char* const from = static_cast<const char*>(source) + kSectionHeaderBytes;
  const size_t body_bytes = encoded_bytes - kSectionHeaderBytes;
  char* const to = static_cast<char*>(target);
  if (spec.codec == Codec::kStored) {
    if (body_bytes != bytes) return false;
    if (past_cache) {
      CopyPastCache(to, from, bytes);
    } else if (bytes > 0) {
      std::memcpy(to, from, bytes);
    }
    return true;
  }
  if (bytes == 0 || bytes > kSectionBytes) return false;
  switch (spec.codec) {
    case Codec::kZvc:
      return DecodeZvc(spec.element_bytes, from, body_bytes, to, bytes, past_cache);
    case Codec::kRle:
      return DecodeRle(spec.element_bytes, from, body_bytes, to, bytes, past_cache);
    case Codec::kCsr:
      return DecodeCsr(spec.element_bytes, from, body_bytes, to, bytes);
    case Codec::kBfp:
      return spec.element_bytes == 4 &&
             DecodeBfp(spec.rate_percent, from, body_bytes, to, bytes, past_cache);
    default:
      return DecodeWithBlosc(spec, from, body_bytes, to, bytes);
  }
}

int64_t CountZeroWords(const void* data, size_t bytes, int element_bytes) {
  const size_t word_bytes = element_bytes == 2 ? 2 : 4;
  return static_cast<int64_t>(
      KernelsFor(element_bytes).count_zeros(static_cast<const char*>(data), bytes / word_bytes));
}

double Sparsity(const void* data, size_t bytes, int element_bytes, int every) {
  const size_t word_bytes = element_bytes == 2 ? 2 : 4;
  const size_t step = kSampleBytes * static_cast<size_t>(std::max(every, 1));
  int64_t zeros = 0, words = 0;
  for (size_t begin = 0; begin < bytes; begin += step) {
    const size_t sample = std::min(bytes - begin, every > 1 ? kSampleBytes : step);
    zeros += CountZeroWords(static_cast<const char*>(data) + begin, sample, element_bytes);
    words += static_cast<int64_t>(sample / word_bytes);
  }
  return words == 0 ? 0.0 : static_cast<double>(zeros) / static_cast<double>(words);
}

}  // namespace tfswap
