// A card's codecs to Python (benchmarks and tests, by ctypes). Strings belong to the caller and go
// back through tfswap_free.

#include "core/c_text.h"
#include "gpu/cuda_codecs.h"

namespace {

using ::tfswap::CardCodec;
using ::tfswap::CodecLaunch;
using ::tfswap::Copied;
using ::tfswap::CudaCodecs;
using ::tfswap::CudaDriver;

char* Why(const absl::Status& status) {
  return Copied(status.ok() ? "" : std::string(status.message()));
}

}  // namespace

extern "C" {

// Of the card of this stream; null, and the reason in `*problem`, where there are none.
void* tfswap_codecs_make(void* stream, const char* folder, char** problem) {
  std::string why;
  const CudaDriver* driver = CudaDriver::Get(&why);
  if (driver == nullptr) {
    *problem = Copied("tfswap: " + why);
    return nullptr;
  }
  CudaDriver::Context context = nullptr;
  const CudaDriver::Result result =
      driver->StreamGetCtx(static_cast<CudaDriver::Stream>(stream), &context);
  if (result != CudaDriver::kSuccess) {
    *problem = Copied("tfswap: no context of the stream: " + driver->Text(result));
    return nullptr;
  }
  auto codecs = CudaCodecs::Make(driver, context, folder);
  *problem = Why(codecs.status());
  return codecs.ok() ? codecs->release() : nullptr;
}

void tfswap_codecs_destroy(void* codecs) { delete static_cast<CudaCodecs*>(codecs); }

int64_t tfswap_codecs_most_bytes(int64_t bytes) { return CudaCodecs::MostBytes(bytes); }
int64_t tfswap_codecs_encoded_bytes(const void* far_block) {
  return CudaCodecs::EncodedBytes(far_block);
}
int64_t tfswap_codecs_zero_elements(const void* far_block) {
  return CudaCodecs::ZeroElements(far_block);
}

// Answer "" or what went wrong.
char* tfswap_codecs_encode(void* codecs, const char* codec, int element_bytes, const void* source,
                           int64_t bytes, void* far_block, void* stream, int blocks, int threads) {
  const absl::StatusOr<CardCodec> parsed = tfswap::ParseCardCodec(codec);
  if (!parsed.ok()) return Why(parsed.status());
  return Why(static_cast<CudaCodecs*>(codecs)->Encode(
      *parsed, element_bytes, source, bytes, far_block, static_cast<CudaDriver::Stream>(stream),
      CodecLaunch{blocks, threads}));
}

char* tfswap_codecs_decode(void* codecs, const char* codec, int element_bytes, void* target,
                           int64_t bytes, const void* far_block, void* stream, int blocks,
                           int threads) {
  const absl::StatusOr<CardCodec> parsed = tfswap::ParseCardCodec(codec);
  if (!parsed.ok()) return Why(parsed.status());
  return Why(static_cast<CudaCodecs*>(codecs)->Decode(
      *parsed, element_bytes, target, bytes, far_block, static_cast<CudaDriver::Stream>(stream),
      CodecLaunch{blocks, threads}));
}

// `count`: two numbers in pinned memory, of zeros and of elements.
char* tfswap_codecs_count_zeros(void* codecs, int element_bytes, const void* source, int64_t bytes,
                                int every, void* count, void* stream, int blocks, int threads) {
  return Why(static_cast<CudaCodecs*>(codecs)->CountZeros(
      element_bytes, source, bytes, every, static_cast<CudaCodecs::ZeroCount*>(count),
      static_cast<CudaDriver::Stream>(stream), CodecLaunch{blocks, threads}));
}

}  // extern "C"
