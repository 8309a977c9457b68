// Registers the codecs of GPUs with libtfswap, for benchmarks and tests.

#include <array>
#include <memory>
#include <utility>

#include "gpu/cuda_codecs.h"
#include "gpu/cuda_gpu.h"
#include "gpu/nvcomp_codec.h"
#include "kernels/gpu_codecs.h"

namespace tfswap {
namespace {

CudaDriver::Stream StreamOf(void* stream) { return static_cast<CudaDriver::Stream>(stream); }

class OwnAndNvcompCodecs : public GpuCodecs {
 public:
  explicit OwnAndNvcompCodecs(std::unique_ptr<CudaCodecs> own) : own_(std::move(own)) {}

  absl::Status UseNvcomp(const std::string& codec, const std::string& path, void* workspace,
                         int64_t bytes, uint64_t* fault, void* stream) override {
    const absl::StatusOr<GpuCodec> parsed = ParseGpuCodec(codec);
    if (!parsed.ok()) return parsed.status();
    const absl::StatusOr<const Nvcomp*> library = Nvcomp::Open(path);
    if (!library.ok()) return library.status();
    auto made =
        NvcompCodec::Make(own_.get(), *library, *parsed, workspace, bytes, fault, StreamOf(stream));
    if (made.ok()) nvcomp_[static_cast<int>(*parsed)] = *std::move(made);
    return made.status();
  }

  absl::Status TakeFault() override {
    for (const std::unique_ptr<NvcompCodec>& each : nvcomp_) {
      const absl::Status status = each == nullptr ? absl::OkStatus() : each->TakeFault();
      if (!status.ok()) return status;
    }
    return absl::OkStatus();
  }

  int64_t MaxBytes(int64_t bytes) const override { return CudaCodecs::MaxBytes(bytes); }
  int64_t EncodedBytes(const void* far_block) const override {
    return CudaCodecs::EncodedBytes(far_block);
  }
  int64_t ZeroElements(const void* far_block) const override {
    return CudaCodecs::ZeroElements(far_block);
  }

  absl::Status Encode(const std::string& codec, int element_bytes, const void* source,
                      int64_t bytes, void* far_block, void* stream,
                      const CodecLaunch& launch) override {
    const absl::StatusOr<GpuCodec> parsed = ParseGpuCodec(codec);
    if (!parsed.ok()) return parsed.status();
    if (NvcompCodec* nvcomp = NvcompOf(*parsed)) {
      return nvcomp->Encode(element_bytes, source, bytes, far_block, StreamOf(stream), launch);
    }
    return own_->Encode(*parsed, element_bytes, source, bytes, far_block, StreamOf(stream), launch);
  }

  absl::Status Decode(const std::string& codec, int element_bytes, void* target, int64_t bytes,
                      const void* far_block, void* stream, const CodecLaunch& launch) override {
    const absl::StatusOr<GpuCodec> parsed = ParseGpuCodec(codec);
    if (!parsed.ok()) return parsed.status();
    if (NvcompCodec* nvcomp = NvcompOf(*parsed)) {
      return nvcomp->Decode(element_bytes, target, bytes, far_block, StreamOf(stream), launch);
    }
    return own_->Decode(*parsed, element_bytes, target, bytes, far_block, StreamOf(stream), launch);
  }

  absl::Status CountZeros(int element_bytes, const void* source, int64_t bytes, int every,
                          void* count, void* stream, const CodecLaunch& launch) override {
    return own_->CountZeros(element_bytes, source, bytes, every,
                            static_cast<CudaCodecs::ZeroCount*>(count), StreamOf(stream), launch);
  }

 private:
  NvcompCodec* NvcompOf(GpuCodec codec) const { return nvcomp_[static_cast<int>(codec)].get(); }

  const std::unique_ptr<CudaCodecs> own_;
  std::array<std::unique_ptr<NvcompCodec>, kGpuCodecs> nvcomp_ = {};  // those in use
};

absl::StatusOr<std::unique_ptr<GpuCodecs>> Make(void* stream, const std::string& folder) {
  std::string why;
  const CudaDriver* driver = CudaDriver::Get(&why);
  if (driver == nullptr) return absl::UnavailableError("tfswap: " + why);
  CudaDriver::Context context = nullptr;
  const CudaDriver::Result result = driver->StreamGetCtx(StreamOf(stream), &context);
  if (result != CudaDriver::kSuccess) {
    return absl::UnavailableError("tfswap: no context of the stream: " + driver->Text(result));
  }
  auto codecs = CudaCodecs::Make(driver, context, folder.empty() ? FolderOfKernels() : folder);
  if (!codecs.ok()) return codecs.status();
  return std::make_unique<OwnAndNvcompCodecs>(*std::move(codecs));
}

[[maybe_unused]] const bool registered = (RegisterGpuCodecs(&Make), true);

}  // namespace
}  // namespace tfswap
