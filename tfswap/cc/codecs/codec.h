#ifndef TFSWAP_CC_CODECS_CODEC_H_
#define TFSWAP_CC_CODECS_CODEC_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace tfswap {

enum class Codec : uint8_t { kStored, kZvc, kRle, kCsr, kLz4, kZstd, kZfp, kBfp, kAns };

// How a buffer is encoded. All but kZfp and kBfp give back every bit. kAns is known to GPUs only.
struct CodecSpec {
  Codec codec = Codec::kStored;
  int element_bytes = 4;   // 2, else words of 4
  int rate_percent = 100;  // lossy ones: encoded size, of the source's; 1..100
};

inline bool operator==(const CodecSpec& a, const CodecSpec& b) {
  return a.codec == b.codec && a.element_bytes == b.element_bytes &&
         a.rate_percent == b.rate_percent;
}

// Whether what it gives back may differ. Such a codec knows float32 only.
constexpr bool IsLossy(Codec codec) { return codec == Codec::kZfp || codec == Codec::kBfp; }

// "stored", "zvc", "rle", "csr", "lz4", "zstd", "zfp", "bfp", "ans".
const char* CodecName(Codec codec);
std::optional<Codec> ParseCodec(std::string_view name);

// Why a spec cannot be used in this process; empty: it can be.
std::string WhyNot(const CodecSpec& spec);

// A buffer is encoded in *sections* of so many bytes, the last one shorter, each by itself:
//
//   | codec | element_bytes | rate_percent | 0 | body |
//
// A section that its codec does not make smaller is stored: its body is the source; of kZvc, kRle
// and kCsr, also one that has no zero in some spots that are looked at. A section of kZfp or kBfp
// with a NaN or an infinity in it is encoded as kZvc; so is one of kBfp at 100 percent or of less
// than 2 KiB. Of kBfp, 11 percent is the least: a lower rate is taken for it. 64 KiB are measured
// to be as fast as more, and faster than fewer; places of words in a section fit 16 bits then.
constexpr size_t kSectionBytes = 64 << 10;
constexpr size_t kSectionHeaderBytes = 4;

constexpr size_t MostEncodedBytes(size_t bytes) { return bytes + kSectionHeaderBytes; }

// Answers the encoded bytes, at most MostEncodedBytes(bytes), which `to` must have room for.
size_t EncodeSection(const CodecSpec& spec, const void* from, size_t bytes, void* to);

// The same, but for what has to be stored: writes the header only, and answers 0.
size_t EncodeUnlessStored(const CodecSpec& spec, const void* from, size_t bytes, void* to);

// False: malformed, and what is in `to` is undefined. Whatever the input, nothing outside of both
// is read or written. `past_cache`: what is decoded is not read soon.
bool DecodeSection(const void* from, size_t encoded_bytes, void* to, size_t bytes,
                   bool past_cache = false);

// How many words of a buffer are zero in all their bits.
int64_t CountZeroWords(const void* data, size_t bytes, int element_bytes);

// The part of words that are zero, 0..1, of every `every`-th 4 KiB; 0 where there are no words.
double Sparsity(const void* data, size_t bytes, int element_bytes, int every = 1);

}  // namespace tfswap

#endif  // TFSWAP_CC_CODECS_CODEC_H_
