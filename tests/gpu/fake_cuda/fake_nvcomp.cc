// nvCOMP for the simulated GPU: the part of the batched interface of releases 5 and 6 that tfswap
// calls. It works on the GPU's memory, in stream order. LZ4 is real if liblz4 is installed;
// otherwise it is like ANS here: a bit for each byte, and the bytes that are not zero.
//
// It is as strict as nvCOMP's headers: misaligned, uninitialized or too small arguments are
// rejected, or end the program. It fills all memory that it may write to (temp, the unused part of
// an output) with noise, so that overlapping parts of a workspace show as wrong bytes.
//
// FAKE_NVCOMP_VERSION is the release that it reports, FAKE_NVCOMP_CUDA the CUDA that it reports.
// fake_nvcomp_fault() makes it fail from then on: "pack status", "pack large", "pack refused",
// "unpack status", "unpack short", "unpack refused", "unpack wrong" (which it does not report).
// FAKE_NVCOMP_FAULT makes it fail from the beginning.

#include <dlfcn.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

namespace {

using Status = int;
constexpr Status kSuccess = 0, kInvalid = 10, kNotSupported = 11, kCannotUnpack = 12,
                 kCannotPack = 19;
constexpr size_t kAlignment = 16, kMostBytes = 1 << 24, kTempASection = 1000;

struct Options {
  int32_t first, second;
  char zeros[56];
};
struct Properties {
  uint32_t version, cudart_version;
};
struct Alignments {
  size_t input, output, temp;
};

uint32_t Number(const char* name, uint32_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : static_cast<uint32_t>(std::atoi(text));
}
const uint32_t version = Number("FAKE_NVCOMP_VERSION", 6000);

std::mutex mu;
std::string fault = [] {
  const char* text = std::getenv("FAKE_NVCOMP_FAULT");
  return std::string(text == nullptr ? "" : text);
}();
std::atomic<int64_t> packs{0}, unpacks{0};

bool Fails(const char* how) {
  std::lock_guard<std::mutex> lock(mu);
  return fault == how;
}

void Require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "fake_nvcomp: %s\n", what);
  std::abort();
}

template <typename Function>
Function FromLibrary(const char* library, const char* name) {
  void* opened = dlopen(library, RTLD_NOW | RTLD_LOCAL);
  return opened == nullptr ? nullptr : reinterpret_cast<Function>(dlsym(opened, name));
}
using Lz4 = int (*)(const char* from, char* to, int bytes, int room);
const Lz4 lz4_pack = FromLibrary<Lz4>("liblz4.so.1", "LZ4_compress_default");
const Lz4 lz4_unpack = FromLibrary<Lz4>("liblz4.so.1", "LZ4_decompress_safe");

void OnStream(void* stream, std::function<void()> command) {
  using Launch = int (*)(void* stream, void (*function)(void*), void* data);
  static const auto launch = FromLibrary<Launch>("libcuda.so.1", "cuLaunchHostFunc");
  Require(launch != nullptr, "no fake GPU");
  launch(
      stream,
      [](void* data) {
        auto* own = static_cast<std::function<void()>*>(data);
        (*own)();
        delete own;
      },
      new std::function<void()>(std::move(command)));
}

// Returns 0 if there was not enough space.
size_t PackBytes(const unsigned char* from, size_t bytes, unsigned char* to, size_t room) {
  const size_t head = sizeof(uint32_t) + (bytes + 7) / 8;
  if (head > room) return 0;
  const auto plain_bytes = static_cast<uint32_t>(bytes);
  std::memcpy(to, &plain_bytes, sizeof(plain_bytes));
  unsigned char* bits = to + sizeof(plain_bytes);
  std::memset(bits, 0, (bytes + 7) / 8);
  size_t at = head;
  for (size_t i = 0; i < bytes; ++i) {
    if (from[i] == 0) continue;
    if (at == room) return 0;
    bits[i / 8] |= 1 << i % 8;
    to[at++] = from[i];
  }
  return at;
}

size_t UnpackBytes(const unsigned char* from, size_t packed, unsigned char* to, size_t room) {
  uint32_t bytes;
  if (packed < sizeof(bytes)) return 0;
  std::memcpy(&bytes, from, sizeof(bytes));
  size_t at = sizeof(bytes) + (bytes + 7) / 8;
  if (bytes > room || at > packed) return 0;
  for (size_t i = 0; i < bytes; ++i) {
    const bool there = from[sizeof(bytes) + i / 8] >> i % 8 & 1;
    if (there && at == packed) return 0;
    to[i] = there ? from[at++] : 0;
  }
  return at == packed ? bytes : 0;
}

bool IsAligned(const void* address) {
  return reinterpret_cast<uintptr_t>(address) % kAlignment == 0;
}

bool AreZero(const Options& options) {
  for (const char zero : options.zeros) {
    if (zero != 0) return false;
  }
  return true;
}

// Return the element size that the options select, in bytes; 0 if they are invalid.
size_t ElementBytes(bool lz4, const Options& options) {
  if (!AreZero(options)) return 0;
  if (lz4) return options.second != 0 ? 0 : options.first == 2 ? 2 : options.first == 4 ? 4 : 1;
  if (options.first != 0) return 0;
  if (version < 6000) return options.second == 9 ? 2 : options.second == 0 ? 1 : 0;
  return options.second == 10 ? 2 : options.second == 11 ? 4 : options.second == 0 ? 1 : 0;
}

bool AreForUnpacking(bool lz4, const Options& options) {
  constexpr int32_t kCuda = 2, kBits = 0xff;
  return AreZero(options) && options.first == kCuda &&
         options.second == (lz4 || version < 6000 ? 0 : kBits);
}

size_t MostPacked(size_t bytes) { return bytes + bytes / 4 + 64; }

Status TempBytes(bool known, size_t sections, size_t* bytes) {
  if (!known) return kNotSupported;
  return *bytes = sections * kTempASection, kSuccess;
}

Status Pack(bool lz4, const void* const* plain, const size_t* plain_bytes, size_t most,
            size_t sections, void* temp, size_t temp_bytes, void* const* packed,
            size_t* packed_bytes, Options options, Status* statuses, void* stream) {
  const size_t element_bytes = ElementBytes(lz4, options);
  if (Fails("pack refused") || element_bytes == 0) return kNotSupported;
  if (sections == 0 || most > kMostBytes || temp_bytes < sections * kTempASection) return kInvalid;
  ++packs;
  OnStream(stream, [=] {
    std::memset(temp, 0xee, temp_bytes);
    for (size_t i = 0; i < sections; ++i) {
      const size_t bytes = plain_bytes[i], room = MostPacked(most);
      Require(bytes > 0 && bytes <= most && bytes % element_bytes == 0, "a section's size");
      Require(IsAligned(plain[i]) && IsAligned(packed[i]), "a section's address");
      const auto* from = static_cast<const unsigned char*>(plain[i]);
      auto* to = static_cast<unsigned char*>(packed[i]);
      std::memset(to, 0xdd, room);
      size_t made = 0;
      if (lz4 && lz4_pack != nullptr) {
        made = lz4_pack(reinterpret_cast<const char*>(from), reinterpret_cast<char*>(to),
                        static_cast<int>(bytes), static_cast<int>(room));
      } else {
        made = PackBytes(from, bytes, to, room);
      }
      const bool failed = made == 0 || (Fails("pack status") && i % 2 == 0);
      packed_bytes[i] = Fails("pack large") && i % 2 == 0 ? room + 1 : made;
      statuses[i] = failed ? kCannotPack : kSuccess;
    }
  });
  return kSuccess;
}

Status Unpack(bool lz4, const void* const* packed, const size_t* packed_bytes, const size_t* room,
              size_t* plain_bytes, size_t sections, void* temp, size_t temp_bytes,
              void* const* plain, Options options, Status* statuses, void* stream) {
  if (Fails("unpack refused") || !AreForUnpacking(lz4, options)) return kNotSupported;
  if (sections == 0 || temp_bytes < sections * kTempASection) return kInvalid;
  ++unpacks;
  OnStream(stream, [=] {
    std::memset(temp, 0xcc, temp_bytes);
    for (size_t i = 0; i < sections; ++i) {
      Require(IsAligned(packed[i]) && IsAligned(plain[i]), "a packed section's address");
      const auto* from = static_cast<const unsigned char*>(packed[i]);
      // The unpacker may write to this before it detects the error.
      std::vector<unsigned char> made(room[i]);
      size_t bytes = 0;
      if (lz4 && lz4_unpack != nullptr) {
        const int found =
            lz4_unpack(reinterpret_cast<const char*>(from), reinterpret_cast<char*>(made.data()),
                       static_cast<int>(packed_bytes[i]), static_cast<int>(room[i]));
        bytes = found > 0 ? found : 0;
      } else {
        bytes = UnpackBytes(from, packed_bytes[i], made.data(), room[i]);
      }
      if (Fails("unpack wrong")) made[bytes / 2] += 4;
      std::memcpy(plain[i], made.data(), bytes);
      const bool failed = bytes == 0 || (Fails("unpack status") && i + 1 == sections);
      statuses[i] = failed ? kCannotUnpack : kSuccess;
      plain_bytes[i] = failed ? 0 : Fails("unpack short") ? bytes - 1 : bytes;
    }
  });
  return kSuccess;
}

}  // namespace

extern "C" {

void fake_nvcomp_fault(const char* how) {
  std::lock_guard<std::mutex> lock(mu);
  fault = how;
}
// Return how many batches were packed.
int64_t fake_nvcomp_packs() { return packs; }

Status nvcompGetProperties(Properties* properties) {
  return *properties = {version, Number("FAKE_NVCOMP_CUDA", 12090)}, kSuccess;
}

#define CODEC(name, lz4)                                                                           \
  Status nvcompBatched##name##CompressGetRequiredAlignments(Options options, Alignments* most) {   \
    return *most = {kAlignment, kAlignment, 1}, ElementBytes(lz4, options) ? kSuccess : kInvalid;  \
  }                                                                                                \
  Status nvcompBatched##name##DecompressGetRequiredAlignments(Options options, Alignments* most) { \
    return *most = {kAlignment, kAlignment, 1},                                                    \
           AreForUnpacking(lz4, options) ? kSuccess : kInvalid;                                    \
  }                                                                                                \
  Status nvcompBatched##name##CompressGetMaxOutputChunkSize(size_t bytes, Options options,         \
                                                            size_t* most) {                        \
    return *most = MostPacked(bytes), ElementBytes(lz4, options) ? kSuccess : kInvalid;            \
  }                                                                                                \
  Status nvcompBatched##name##CompressGetTempSizeAsync(size_t sections, size_t, Options options,   \
                                                       size_t* bytes, size_t) {                    \
    return TempBytes(version < 6000 && ElementBytes(lz4, options) > 0, sections, bytes);           \
  }                                                                                                \
  Status nvcompBatched##name##DecompressGetTempSizeAsync(size_t sections, size_t, Options options, \
                                                         size_t* bytes, size_t) {                  \
    return TempBytes(version < 6000 && AreForUnpacking(lz4, options), sections, bytes);            \
  }                                                                                                \
  Status nvcompBatched##name##CompressGetTempSize(size_t sections, size_t, Options options,        \
                                                  size_t* bytes, size_t, void*) {                  \
    return TempBytes(version >= 6000 && ElementBytes(lz4, options) > 0, sections, bytes);          \
  }                                                                                                \
  Status nvcompBatched##name##DecompressGetTempSize(size_t sections, size_t, Options options,      \
                                                    size_t* bytes, size_t, void*) {                \
    return TempBytes(version >= 6000 && AreForUnpacking(lz4, options), sections, bytes);           \
  }                                                                                                \
  Status nvcompBatched##name##CompressAsync(                                                       \
      const void* const* plain, const size_t* plain_bytes, size_t most, size_t sections,           \
      void* temp, size_t temp_bytes, void* const* packed, size_t* packed_bytes, Options options,   \
      Status* statuses, void* stream) {                                                            \
    return Pack(lz4, plain, plain_bytes, most, sections, temp, temp_bytes, packed, packed_bytes,   \
                options, statuses, stream);                                                        \
  }                                                                                                \
  Status nvcompBatched##name##DecompressAsync(                                                     \
      const void* const* packed, const size_t* packed_bytes, const size_t* room,                   \
      size_t* plain_bytes, size_t sections, void* temp, size_t temp_bytes, void* const* plain,     \
      Options options, Status* statuses, void* stream) {                                           \
    return Unpack(lz4, packed, packed_bytes, room, plain_bytes, sections, temp, temp_bytes, plain, \
                  options, statuses, stream);                                                      \
  }

CODEC(LZ4, true)
CODEC(ANS, false)

}  // extern "C"
