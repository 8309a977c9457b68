#include "gpu/nvcomp.h"

#include <dlfcn.h>

#include <algorithm>
#include <mutex>

#include "absl/strings/str_cat.h"

namespace tfswap {

namespace {

constexpr uint32_t kOldest = 5, kNewest = 6;  // major releases
constexpr size_t kPlainBytes = gpu_codec::kBatchSectionBytes;

std::string TextOf(uint32_t version) {
  return absl::StrCat(version / 1000, ".", version % 1000 / 100, ".", version % 100);
}

absl::Status RefusedError(const char* name, const char* what, nvcomp::Status status) {
  return absl::FailedPreconditionError(
      absl::StrCat("tfswap: nvCOMP's ", name, " refuses ", what, " (nvCOMP status ", status, ")"));
}

}  // namespace

absl::StatusOr<const Nvcomp*> Nvcomp::Open(const std::string& path) {
  static std::mutex mu;
  static const Nvcomp* opened = nullptr;
  std::lock_guard<std::mutex> lock(mu);
  if (opened != nullptr) return opened;
  auto* library = new Nvcomp();
  const absl::Status status = library->Load(path);
  if (!status.ok()) {
    delete library;
    return status;
  }
  opened = library;
  return opened;
}

absl::Status Nvcomp::Load(const std::string& path) {
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("tfswap: cannot load nvCOMP: ", dlerror(),
                     ". Reinstall it: pip install --force-reinstall nvidia-nvcomp-cu12"));
  }
  std::string missing;
  const auto take = [&](const std::string& name) {
    void* found = dlsym(library, name.c_str());
    if (found == nullptr && missing.empty()) missing = name;
    return found;
  };
  const auto properties = reinterpret_cast<nvcomp::GetProperties>(take("nvcompGetProperties"));
  if (properties == nullptr || properties(&properties_) != nvcomp::kSuccess) {
    return absl::FailedPreconditionError(
        absl::StrCat("tfswap: ", path, " is not nvCOMP: it has no nvcompGetProperties"));
  }
  const uint32_t major = properties_.version / 1000;
  if (major < kOldest || major > kNewest) {
    return absl::FailedPreconditionError(absl::StrCat(
        "tfswap: nvCOMP ", Version(), " (", path, ") is not supported: releases ", kOldest, " to ",
        kNewest, " are. pip install \"nvidia-nvcomp-cu12>=", kOldest, ",<", kNewest + 1, "\""));
  }
  using nvcomp::Options;
  for (const GpuCodec codec : {GpuCodec::kLz4, GpuCodec::kAns}) {
    const bool lz4 = codec == GpuCodec::kLz4;
    Method& method = methods_[static_cast<int>(codec) - kGpuKernels];
    method.name_ = lz4 ? "LZ4" : "ANS";
    method.temp_takes_stream_ = major >= 6;
    if (lz4) {
      method.pack_options_ = {Options{nvcomp::kInt, 0, {}}, Options{nvcomp::kShort, 0, {}}};
      method.unpack_options_ = {nvcomp::kBackendCuda, 0, {}};
    } else if (major == 5) {  // bytes, because it does not support words of that size
      method.pack_options_ = {Options{0, nvcomp::kChar, {}}, Options{0, nvcomp::kFloat16Of5, {}}};
      method.unpack_options_ = {nvcomp::kBackendCuda, 0, {}};
    } else {
      method.pack_options_ = {Options{0, nvcomp::kFloat32Of6, {}},
                              Options{0, nvcomp::kFloat16Of6, {}}};
      method.unpack_options_ = {nvcomp::kBackendCuda, nvcomp::kBits, {}};
    }
    const auto named = [&](const char* name) {
      return take(absl::StrCat("nvcompBatched", method.name_, name));
    };
    const char* const suffix = method.temp_takes_stream_ ? "" : "Async";
    method.pack_temp_bytes_ = named(absl::StrCat("CompressGetTempSize", suffix).c_str());
    method.unpack_temp_bytes_ = named(absl::StrCat("DecompressGetTempSize", suffix).c_str());
    method.max_packed_bytes_ =
        reinterpret_cast<nvcomp::GetMaxPackedBytes>(named("CompressGetMaxOutputChunkSize"));
    method.pack_alignments_ =
        reinterpret_cast<nvcomp::GetAlignments>(named("CompressGetRequiredAlignments"));
    method.unpack_alignments_ =
        reinterpret_cast<nvcomp::GetAlignments>(named("DecompressGetRequiredAlignments"));
    method.pack = reinterpret_cast<nvcomp::Pack>(named("CompressAsync"));
    method.unpack = reinterpret_cast<nvcomp::Unpack>(named("DecompressAsync"));
  }
  if (missing.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("tfswap: nvCOMP ", Version(), " (", path, ") has no ", missing));
}

std::string Nvcomp::Version() const { return TextOf(properties_.version); }

absl::StatusOr<size_t> Nvcomp::Method::MaxPackedBytes(int word_bytes, size_t plain_bytes) const {
  size_t bytes = 0;
  const nvcomp::Status status = max_packed_bytes_(plain_bytes, PackOptions(word_bytes), &bytes);
  if (status != nvcomp::kSuccess) return RefusedError(name_, "sections of 64 KiB", status);
  return bytes;
}

absl::StatusOr<size_t> Nvcomp::Method::PackTempBytes(int word_bytes, size_t sections,
                                                     nvcomp::Stream stream) const {
  return TempBytes(pack_temp_bytes_, PackOptions(word_bytes), sections, stream);
}

absl::StatusOr<size_t> Nvcomp::Method::UnpackTempBytes(size_t sections,
                                                       nvcomp::Stream stream) const {
  return TempBytes(unpack_temp_bytes_, unpack_options_, sections, stream);
}

absl::StatusOr<size_t> Nvcomp::Method::TempBytes(void* function, nvcomp::Options options,
                                                 size_t sections, nvcomp::Stream stream) const {
  size_t bytes = 0;
  const size_t all_bytes = sections * kPlainBytes;
  const nvcomp::Status status = temp_takes_stream_
                                    ? reinterpret_cast<nvcomp::GetTempBytes6>(function)(
                                          sections, kPlainBytes, options, &bytes, all_bytes, stream)
                                    : reinterpret_cast<nvcomp::GetTempBytes5>(function)(
                                          sections, kPlainBytes, options, &bytes, all_bytes);
  if (status != nvcomp::kSuccess)
    return RefusedError(name_, "to report its workspace size", status);
  return bytes;
}

absl::StatusOr<nvcomp::Alignments> Nvcomp::Method::MaxAlignments(int word_bytes) const {
  nvcomp::Alignments pack = {}, unpack = {};
  nvcomp::Status status = pack_alignments_(PackOptions(word_bytes), &pack);
  if (status == nvcomp::kSuccess) status = unpack_alignments_(unpack_options_, &unpack);
  if (status != nvcomp::kSuccess) return RefusedError(name_, "to report its alignment", status);
  return nvcomp::Alignments{std::max(pack.input, unpack.input),
                            std::max(pack.output, unpack.output), std::max(pack.temp, unpack.temp)};
}

}  // namespace tfswap
