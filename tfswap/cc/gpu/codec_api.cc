// A GPU's codecs to Python (benchmarks and tests, by ctypes). Strings belong to the caller and go
// back through tfswap_free.

#include <array>
#include <memory>

#include "core/util/c_text.h"
#include "gpu/cuda_codecs.h"
#include "gpu/nvcomp_codec.h"

namespace {

using ::tfswap::CodecLaunch;
using ::tfswap::Copied;
using ::tfswap::CudaCodecs;
using ::tfswap::CudaDriver;
using ::tfswap::GpuCodec;
using ::tfswap::Nvcomp;
using ::tfswap::NvcompCodec;

// Of one GPU.
struct Codecs {
  std::unique_ptr<CudaCodecs> own;
  std::array<std::unique_ptr<NvcompCodec>, tfswap::kGpuCodecs> nvcomp = {};  // those in use
};

NvcompCodec* NvcompOf(void* codecs, GpuCodec codec) {
  return static_cast<Codecs*>(codecs)->nvcomp[static_cast<int>(codec)].get();
}

char* Why(const absl::Status& status) {
  return Copied(status.ok() ? "" : std::string(status.message()));
}

}  // namespace

extern "C" {

// Of the GPU of this stream; null, and the reason in `*problem`, where there are none.
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
  return codecs.ok() ? new Codecs{*std::move(codecs)} : nullptr;
}

void tfswap_codecs_destroy(void* codecs) { delete static_cast<Codecs*>(codecs); }

// One of nvCOMP's, in that memory of the GPU. `fault`: a number in pinned memory. Answers "" or
// why not.
char* tfswap_codecs_use_nvcomp(void* codecs, const char* codec, const char* path, void* workspace,
                               int64_t bytes, uint64_t* fault, void* stream) {
  const absl::StatusOr<GpuCodec> parsed = tfswap::ParseGpuCodec(codec);
  if (!parsed.ok()) return Why(parsed.status());
  const absl::StatusOr<const Nvcomp*> library = Nvcomp::Open(path);
  if (!library.ok()) return Why(library.status());
  auto* own = static_cast<Codecs*>(codecs);
  auto made = NvcompCodec::Make(own->own.get(), *library, *parsed, workspace, bytes, fault,
                                static_cast<CudaDriver::Stream>(stream));
  if (made.ok()) own->nvcomp[static_cast<int>(*parsed)] = *std::move(made);
  return Why(made.status());
}

// "" or that something could not be decoded.
char* tfswap_codecs_take_fault(void* codecs) {
  for (const std::unique_ptr<NvcompCodec>& each : static_cast<Codecs*>(codecs)->nvcomp) {
    const absl::Status status = each == nullptr ? absl::OkStatus() : each->TakeFault();
    if (!status.ok()) return Why(status);
  }
  return Why(absl::OkStatus());
}

int64_t tfswap_codecs_most_bytes(int64_t bytes) { return CudaCodecs::MaxBytes(bytes); }
int64_t tfswap_codecs_encoded_bytes(const void* far_block) {
  return CudaCodecs::EncodedBytes(far_block);
}
int64_t tfswap_codecs_zero_elements(const void* far_block) {
  return CudaCodecs::ZeroElements(far_block);
}

// Answer "" or what went wrong.
char* tfswap_codecs_encode(void* codecs, const char* codec, int element_bytes, const void* source,
                           int64_t bytes, void* far_block, void* stream, int blocks, int threads) {
  const absl::StatusOr<GpuCodec> parsed = tfswap::ParseGpuCodec(codec);
  if (!parsed.ok()) return Why(parsed.status());
  auto* on = static_cast<CudaDriver::Stream>(stream);
  const CodecLaunch launch{blocks, threads};
  if (NvcompCodec* nvcomp = NvcompOf(codecs, *parsed)) {
    return Why(nvcomp->Encode(element_bytes, source, bytes, far_block, on, launch));
  }
  return Why(static_cast<Codecs*>(codecs)->own->Encode(*parsed, element_bytes, source, bytes,
                                                       far_block, on, launch));
}

char* tfswap_codecs_decode(void* codecs, const char* codec, int element_bytes, void* target,
                           int64_t bytes, const void* far_block, void* stream, int blocks,
                           int threads) {
  const absl::StatusOr<GpuCodec> parsed = tfswap::ParseGpuCodec(codec);
  if (!parsed.ok()) return Why(parsed.status());
  auto* on = static_cast<CudaDriver::Stream>(stream);
  const CodecLaunch launch{blocks, threads};
  if (NvcompCodec* nvcomp = NvcompOf(codecs, *parsed)) {
    return Why(nvcomp->Decode(element_bytes, target, bytes, far_block, on, launch));
  }
  return Why(static_cast<Codecs*>(codecs)->own->Decode(*parsed, element_bytes, target, bytes,
                                                       far_block, on, launch));
}

// `count`: two numbers in pinned memory, of zeros and of elements.
char* tfswap_codecs_count_zeros(void* codecs, int element_bytes, const void* source, int64_t bytes,
                                int every, void* count, void* stream, int blocks, int threads) {
  return Why(static_cast<Codecs*>(codecs)->own->CountZeros(
      element_bytes, source, bytes, every, static_cast<CudaCodecs::ZeroCount*>(count),
      static_cast<CudaDriver::Stream>(stream), CodecLaunch{blocks, threads}));
}

}  // extern "C"
