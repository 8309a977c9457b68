#include "codecs/blosc.h"

#include <cstring>

#if defined(TFSWAP_WITH_BLOSC)

#include <b2nd.h>
#include <blosc2.h>
#include <blosc2/codecs-registry.h>
#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <tuple>
#include <vector>

namespace tfswap {
namespace {

// The functions used of the library.
struct Library {
  decltype(&::blosc2_init) init;
  decltype(&::blosc2_get_version_string) version;
  decltype(&::blosc2_get_blosc2_cparams_defaults) default_cparams;
  decltype(&::blosc2_get_blosc2_dparams_defaults) default_dparams;
  decltype(&::blosc2_get_blosc2_storage_defaults) default_storage;
  decltype(&::blosc2_create_cctx) create_cctx;
  decltype(&::blosc2_create_dctx) create_dctx;
  decltype(&::blosc2_free_ctx) free_ctx;
  decltype(&::blosc2_compress_ctx) compress;
  decltype(&::blosc2_decompress_ctx) decompress;
  decltype(&::blosc2_schunk_new) schunk_new;
  decltype(&::blosc2_schunk_free) schunk_free;
  decltype(&::blosc2_meta_add) meta_add;
  decltype(&::b2nd_serialize_meta) serialize_meta;
};

// Never unloaded: threads free their contexts with it when they end.
std::atomic<const Library*> loaded{nullptr};

// The middle level of LZ4; the lowest one of Zstd, because higher ones are ten times slower for a
// gain of some percent.
constexpr uint8_t kLz4Level = 5, kZstdLevel = 1;

constexpr size_t kRowFloats = 64;
constexpr size_t kCellRows = 4;
constexpr size_t kStepBytes = kRowFloats * kCellRows * 4;

// A c-blosc2 chunk with one block: header, offset of the block, its size, the block.
constexpr size_t kHeaderBytes = BLOSC_EXTENDED_HEADER_LENGTH;
constexpr size_t kBlockAt = kHeaderBytes + 8;

uint32_t Load32(const char* from) {
  uint32_t value;
  std::memcpy(&value, from, sizeof(value));
  return value;
}

// The bytes to encode: whole words; for ZFP, whole rows of cells.
size_t CodedBytes(const CodecSpec& spec, size_t bytes) {
  const size_t step =
      spec.codec == Codec::kZfp ? kStepBytes : static_cast<size_t>(spec.element_bytes);
  return bytes / step * step;
}

// The encoded size of ZFP at a fixed rate: cells of 16 floats with at least 9 bits, in words of 64
// bits.
size_t ZfpBytes(const CodecSpec& spec, size_t coded_bytes) {
  const double rate_bits = static_cast<double>(spec.rate_percent) / 100.0 * 4 * 8;
  const auto cell_bits = std::max(static_cast<size_t>(16 * rate_bits + 0.5), size_t{9});
  return (coded_bytes / 64 * cell_bits + 63) / 64 * 8;
}

// The contexts of one thread for one spec and size.
class Contexts {
 public:
  Contexts(const Library& library, const CodecSpec& spec, size_t coded_bytes) : library_(library) {
    blosc2_cparams cparams = library.default_cparams();
    std::fill(std::begin(cparams.filters), std::end(cparams.filters), 0);
    cparams.typesize = spec.element_bytes;
    cparams.nthreads = 1;  // sections run in parallel instead
    cparams.blocksize = static_cast<int32_t>(coded_bytes);
    cparams.splitmode = BLOSC_NEVER_SPLIT;
    blosc2_dparams dparams = library.default_dparams();
    dparams.nthreads = 1;
    if (spec.codec == Codec::kZfp) {
      cparams.compcode = BLOSC_CODEC_ZFP_FIXED_RATE;
      cparams.compcode_meta = static_cast<uint8_t>(spec.rate_percent);
      shape_ = MakeShape(cparams, dparams, coded_bytes);
      if (shape_ == nullptr) return;
      cparams.schunk = shape_;
      dparams.schunk = shape_;
    } else {
      cparams.compcode = spec.codec == Codec::kLz4 ? BLOSC_LZ4 : BLOSC_ZSTD;
      cparams.clevel = spec.codec == Codec::kLz4 ? kLz4Level : kZstdLevel;
      cparams.filters[BLOSC2_MAX_FILTERS - 1] = BLOSC_SHUFFLE;
    }
    encoder_ = library.create_cctx(cparams);
    decoder_ = library.create_dctx(dparams);
  }

  ~Contexts() {
    if (encoder_ != nullptr) library_.free_ctx(encoder_);
    if (decoder_ != nullptr) library_.free_ctx(decoder_);
    if (shape_ != nullptr) library_.schunk_free(shape_);
  }

  Contexts(const Contexts&) = delete;
  Contexts& operator=(const Contexts&) = delete;

  bool complete() const { return encoder_ != nullptr && decoder_ != nullptr; }
  blosc2_context* encoder() { return encoder_; }
  blosc2_context* decoder() { return decoder_; }

 private:
  // c-blosc2 gets the block shape of ZFP from an array's metadata, so create an array without data.
  blosc2_schunk* MakeShape(blosc2_cparams& cparams, blosc2_dparams& dparams, size_t coded_bytes) {
    blosc2_storage storage = library_.default_storage();
    storage.cparams = &cparams;
    storage.dparams = &dparams;
    blosc2_schunk* const array = library_.schunk_new(&storage);
    if (array == nullptr) return nullptr;
    const auto rows = static_cast<int32_t>(coded_bytes / 4 / kRowFloats);
    const int64_t shape[] = {rows, kRowFloats};
    const int32_t block[] = {rows, kRowFloats};
    uint8_t* meta = nullptr;
    const int32_t meta_bytes = library_.serialize_meta(2, shape, block, block, "<f4", 0, &meta);
    const bool added = meta_bytes > 0 && library_.meta_add(array, "b2nd", meta, meta_bytes) >= 0;
    std::free(meta);
    if (added) return array;
    library_.schunk_free(array);
    return nullptr;
  }

  const Library& library_;
  blosc2_schunk* shape_ = nullptr;
  blosc2_context* encoder_ = nullptr;
  blosc2_context* decoder_ = nullptr;
};

// Return this thread's contexts; null if they could not be created. Each is for one size: a context
// that has processed a smaller size splits all later input into blocks of that size.
Contexts* ContextsFor(const CodecSpec& spec, size_t coded_bytes) {
  using Key = std::tuple<Codec, int, int, size_t>;
  using Kept = std::map<Key, std::unique_ptr<Contexts>>;
  constexpr size_t kMaxShorter = 8;
  thread_local Kept whole_sections, shorter;
  const bool is_whole = coded_bytes == kSectionBytes;
  Kept& kept = is_whole ? whole_sections : shorter;
  const Key key = {spec.codec, spec.element_bytes, spec.rate_percent, coded_bytes};
  auto found = kept.find(key);
  if (found == kept.end()) {
    if (!is_whole && kept.size() >= kMaxShorter) kept.clear();
    found = kept.emplace(key, std::make_unique<Contexts>(*loaded.load(), spec, coded_bytes)).first;
  }
  return found->second->complete() ? found->second.get() : nullptr;
}

// The header bytes that are the same in all chunks of a kind: versions, flags and word size;
// filters and codec. (Between them are three sizes, after them the flags of special chunks.)
constexpr size_t kComparedBegin = 16, kComparedEnd = 31, kRateAt = 23;
using Header = std::array<char, kHeaderBytes>;

Header MakeExpectedHeader(const CodecSpec& spec) {
  std::vector<float> source(kSectionBytes / 4);
  for (size_t i = 0; i < source.size(); ++i) source[i] = 1.0f + static_cast<float>(i % 64);
  std::vector<char> chunk(kSectionBytes);
  Header header = {};
  Contexts* const contexts = ContextsFor(spec, kSectionBytes);
  const int bytes = contexts == nullptr
                        ? 0
                        : loaded.load()->compress(contexts->encoder(), source.data(), kSectionBytes,
                                                  chunk.data(), kSectionBytes);
  if (bytes > 0) std::copy_n(chunk.begin(), kHeaderBytes, header.begin());
  return header;
}

const Header& ExpectedHeader(const CodecSpec& spec) {
  static const Header lz4_2 = MakeExpectedHeader({Codec::kLz4, 2, 100});
  static const Header lz4_4 = MakeExpectedHeader({Codec::kLz4, 4, 100});
  static const Header zstd_2 = MakeExpectedHeader({Codec::kZstd, 2, 100});
  static const Header zstd_4 = MakeExpectedHeader({Codec::kZstd, 4, 100});
  static const Header zfp = MakeExpectedHeader({Codec::kZfp, 4, 50});
  if (spec.codec == Codec::kZfp) return zfp;
  if (spec.codec == Codec::kLz4) return spec.element_bytes == 2 ? lz4_2 : lz4_4;
  return spec.element_bytes == 2 ? zstd_2 : zstd_4;
}

// Return whether it is safe to pass a chunk to c-blosc2. Its header must equal that of our encoder,
// because others could select different codecs, filters that are programs, and files. c-blosc2
// validates the rest, except for ZFP, whose streams must have the length that their rate implies.
bool HasExpectedHeader(const CodecSpec& spec, const char* chunk, size_t chunk_bytes,
                       size_t coded_bytes) {
  if (chunk_bytes < kHeaderBytes) return false;
  const Header& kind = ExpectedHeader(spec);
  if (kind[0] == 0 || std::memcmp(chunk, kind.data(), 4) != 0) return false;
  for (size_t i = kComparedBegin; i < kComparedEnd; ++i) {
    const bool is_rate = spec.codec == Codec::kZfp && i == kRateAt;
    if (chunk[i] != (is_rate ? static_cast<char>(spec.rate_percent) : kind[i])) return false;
  }
  if (Load32(chunk + 4) != coded_bytes || Load32(chunk + 8) != coded_bytes) return false;
  if (Load32(chunk + 12) != chunk_bytes) return false;
  const int special = static_cast<unsigned char>(chunk[kHeaderBytes - 1]);
  if (special == BLOSC2_SPECIAL_ZERO << 4) return chunk_bytes == kHeaderBytes;
  if (special != 0 || chunk_bytes <= kBlockAt) return false;
  if (Load32(chunk + kHeaderBytes) != kHeaderBytes + 4) return false;
  if (spec.codec != Codec::kZfp) return true;
  return Load32(chunk + kHeaderBytes + 4) == ZfpBytes(spec, coded_bytes) &&
         chunk_bytes == kBlockAt + ZfpBytes(spec, coded_bytes);
}

template <typename Function>
bool Find(void* library, const char* name, Function* function) {
  *function = reinterpret_cast<Function>(::dlsym(library, name));
  return *function != nullptr;
}

// Return "3.3" for "3.3.5": structs passed by value are compatible within a minor release.
std::string Release(const std::string& version) {
  return version.substr(0, version.find('.', version.find('.') + 1));
}

}  // namespace

std::string LoadBlosc(const std::string& path) {
  static std::mutex mu;
  std::lock_guard<std::mutex> lock(mu);
  if (loaded.load() != nullptr) return "";
  void* const handle = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* const error = ::dlerror();
    return "c-blosc2 cannot be loaded: " + std::string(error == nullptr ? path : error);
  }
  auto library = std::make_unique<Library>();
  const bool complete =
      Find(handle, "blosc2_init", &library->init) &&
      Find(handle, "blosc2_get_version_string", &library->version) &&
      Find(handle, "blosc2_get_blosc2_cparams_defaults", &library->default_cparams) &&
      Find(handle, "blosc2_get_blosc2_dparams_defaults", &library->default_dparams) &&
      Find(handle, "blosc2_get_blosc2_storage_defaults", &library->default_storage) &&
      Find(handle, "blosc2_create_cctx", &library->create_cctx) &&
      Find(handle, "blosc2_create_dctx", &library->create_dctx) &&
      Find(handle, "blosc2_free_ctx", &library->free_ctx) &&
      Find(handle, "blosc2_compress_ctx", &library->compress) &&
      Find(handle, "blosc2_decompress_ctx", &library->decompress) &&
      Find(handle, "blosc2_schunk_new", &library->schunk_new) &&
      Find(handle, "blosc2_schunk_free", &library->schunk_free) &&
      Find(handle, "blosc2_meta_add", &library->meta_add) &&
      Find(handle, "b2nd_serialize_meta", &library->serialize_meta);
  if (!complete) {
    ::dlclose(handle);
    return path + " is not a library of c-blosc2 2 or newer";
  }
  const std::string found = library->version();
  if (Release(found) != Release(BLOSC2_VERSION_STRING)) {
    ::dlclose(handle);
    return "c-blosc2 " + found + " was found in " + path + ", and tfswap was built for " +
           Release(BLOSC2_VERSION_STRING) +
           ": pip install blosc2==" TFSWAP_WITH_BLOSC ", or build tfswap again";
  }
  library->init();
  loaded = library.release();
  return "";
}

bool BloscIsLoaded() { return loaded.load() != nullptr; }

size_t EncodeWithBlosc(const CodecSpec& spec, const char* from, size_t bytes, char* to,
                       size_t capacity) {
  const Library* const library = loaded.load();
  const size_t coded_bytes = CodedBytes(spec, bytes);
  const size_t left_bytes = bytes - coded_bytes;
  if (library == nullptr || coded_bytes == 0 || capacity <= left_bytes + kBlockAt) return 0;
  Contexts* const contexts = ContextsFor(spec, coded_bytes);
  if (contexts == nullptr) return 0;
  const int written =
      library->compress(contexts->encoder(), from, static_cast<int32_t>(coded_bytes), to,
                        static_cast<int32_t>(capacity - left_bytes));
  if (written <= 0) return 0;
  const auto chunk_bytes = static_cast<size_t>(written);
  if (!HasExpectedHeader(spec, to, chunk_bytes, coded_bytes))
    return 0;  // such as incompressible data that c-blosc2 copies
  std::memcpy(to + chunk_bytes, from + coded_bytes, left_bytes);
  return chunk_bytes + left_bytes;
}

bool DecodeWithBlosc(const CodecSpec& spec, const char* from, size_t encoded_bytes, char* to,
                     size_t bytes) {
  const Library* const library = loaded.load();
  const size_t coded_bytes = CodedBytes(spec, bytes);
  const size_t left_bytes = bytes - coded_bytes;
  if (library == nullptr || coded_bytes == 0 || encoded_bytes <= left_bytes) return false;
  const size_t chunk_bytes = encoded_bytes - left_bytes;
  if (!HasExpectedHeader(spec, from, chunk_bytes, coded_bytes)) return false;
  Contexts* const contexts = ContextsFor(spec, coded_bytes);
  if (contexts == nullptr) return false;
  const int decoded =
      library->decompress(contexts->decoder(), from, static_cast<int32_t>(chunk_bytes), to,
                          static_cast<int32_t>(coded_bytes));
  if (decoded != static_cast<int>(coded_bytes)) return false;
  std::memcpy(to + coded_bytes, from + chunk_bytes, left_bytes);
  return true;
}

}  // namespace tfswap

#else

namespace tfswap {

std::string LoadBlosc(const std::string&) {
  return "tfswap was built without c-blosc2's headers; install blosc2, then install tfswap again";
}

bool BloscIsLoaded() { return false; }

size_t EncodeWithBlosc(const CodecSpec&, const char*, size_t, char*, size_t) { return 0; }

bool DecodeWithBlosc(const CodecSpec&, const char*, size_t, char*, size_t) { return false; }

}  // namespace tfswap

#endif
