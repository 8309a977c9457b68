#ifndef TFSWAP_CC_CODECS_CODEC_H_
#define TFSWAP_CC_CODECS_CODEC_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace tfswap {

enum class Codec : uint8_t { kStored, kZvc, kRle, kCsr, kLz4, kZstd, kZfp, kBfp, kAns };

// How a buffer is encoded. All codecs except kZfp and kBfp are lossless. kAns exists on GPUs only.
struct CodecSpec {
  Codec codec = Codec::kStored;
  int element_bytes = 4;   // 2, else words of 4
  int rate_percent = 100;  // of lossy codecs: encoded size in percent of the source, 1..100
};

inline bool operator==(const CodecSpec& a, const CodecSpec& b) {
  return a.codec == b.codec && a.element_bytes == b.element_bytes &&
         a.rate_percent == b.rate_percent;
}

// Return whether the codec is lossy. Lossy codecs support float32 only.
constexpr bool IsLossy(Codec codec) { return codec == Codec::kZfp || codec == Codec::kBfp; }

// "stored", "zvc", "rle", "csr", "lz4", "zstd", "zfp", "bfp", "ans".
const char* CodecName(Codec codec);
std::optional<Codec> ParseCodec(std::string_view name);

// Return why a spec cannot be used in this process; "" if it can.
std::string WhyUnusable(const CodecSpec& spec);

// A buffer is encoded in independent *sections* of this size, the last one shorter:
//
//   | codec | element_bytes | rate_percent | 0 | body |
//
// A section that its codec does not shrink is stored uncompressed; with kZvc, kRle and kCsr also
// one without zeros in some samples. With kZfp and kBfp, a section with a NaN or an infinity is
// encoded as kZvc; with kBfp also one at 100 percent or of less than 2 KiB. The minimum rate of
// kBfp is 11 percent; lower rates are raised to it. 64 KiB were measured to be as fast as larger
// sections and faster than smaller ones; positions of words fit into 16 bits.
constexpr size_t kSectionBytes = 64 << 10;
constexpr size_t kSectionHeaderBytes = 4;

constexpr size_t MaxEncodedBytes(size_t bytes) { return bytes + kSectionHeaderBytes; }

// Return the encoded bytes, at most MaxEncodedBytes(bytes), which `to` must have space for.
size_t EncodeSection(const CodecSpec& spec, const void* from, size_t bytes, void* to);

// The same, except that for an uncompressed section only the header is written and 0 returned.
size_t EncodeUnlessStored(const CodecSpec& spec, const void* from, size_t bytes, void* to);

// Return false if the input is malformed; `to` is undefined then. Never accesses memory outside of
// both buffers. `past_cache`: bypass the caches because the output is not read soon.
bool DecodeSection(const void* from, size_t encoded_bytes, void* to, size_t bytes,
                   bool past_cache = false);

// Return the number of words that are zero in all bits.
int64_t CountZeroWords(const void* data, size_t bytes, int element_bytes);

// Return the share of zero words, 0..1, in every `every`-th 4 KiB; 0 if there are no words.
double Sparsity(const void* data, size_t bytes, int element_bytes, int every = 1);

}  // namespace tfswap

#endif  // TFSWAP_CC_CODECS_CODEC_H_
