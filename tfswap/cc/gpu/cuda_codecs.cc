#include "gpu/cuda_codecs.h"

#include <algorithm>
#include <fstream>
#include <iterator>

#include "absl/strings/str_cat.h"

namespace tfswap {

namespace {

constexpr const char* kNames[kGpuCodecs] = {"zvc", "rle", "csr", "lz4", "ans"};
constexpr const char* kMachineCode = "codec_kernels.fatbin";
constexpr const char* kPtx = "codec_kernels.ptx";
// The size of one access of a thread, and the alignment of tensors.
constexpr uintptr_t kUnitBytes = 16;

absl::Status Unavailable(const std::string& why) {
  return absl::FailedPreconditionError(
      absl::StrCat("tfswap: codecs on the GPU are not available: ", why));
}

absl::Status NvcompNotLoaded(GpuCodec codec) {
  return absl::FailedPreconditionError(absl::StrCat(
      "tfswap: ", GpuCodecName(codec), " on the GPU requires nvCOMP, which is not loaded"));
}

std::string Contents(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// Return the CUDA release in the header of the PTX, which also compiled the machine code.
std::string ToolkitOf(const std::string& ptx) {
  constexpr std::string_view kRelease = "release ";
  const size_t at = ptx.substr(0, 1000).find(kRelease);
  if (at == std::string::npos) return "an unknown CUDA";
  const size_t begin = at + kRelease.size();
  return absl::StrCat("CUDA ", ptx.substr(begin, ptx.find_first_of(",\n", begin) - begin));
}

}  // namespace

const char* GpuCodecName(GpuCodec codec) { return kNames[static_cast<int>(codec)]; }

std::optional<GpuCodec> GpuCodecOf(Codec codec) {
  switch (codec) {
    case Codec::kZvc:
      return GpuCodec::kZvc;
    case Codec::kRle:
      return GpuCodec::kRle;
    case Codec::kCsr:
      return GpuCodec::kCsr;
    case Codec::kLz4:
      return GpuCodec::kLz4;
    case Codec::kAns:
      return GpuCodec::kAns;
    default:
      return std::nullopt;
  }
}

absl::StatusOr<GpuCodec> ParseGpuCodec(std::string_view name) {
  for (int i = 0; i < kGpuCodecs; ++i) {
    if (name == kNames[i]) return static_cast<GpuCodec>(i);
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "tfswap: no codec '", name, "' on the GPU; allowed are zvc, rle, csr, lz4 and ans"));
}

absl::StatusOr<std::unique_ptr<CudaCodecs>> CudaCodecs::Make(const CudaDriver* driver,
                                                             CudaDriver::Context context,
                                                             const std::string& folder) {
  std::unique_ptr<CudaCodecs> codecs(new CudaCodecs(driver, context));
  const absl::Status status = codecs->Load(folder);
  if (!status.ok()) return status;
  return codecs;
}

absl::Status CudaCodecs::Load(const std::string& folder) {
  for (const bool there :
       {driver_->DriverGetVersion != nullptr, driver_->CtxGetDevice != nullptr,
        driver_->DeviceGetAttribute != nullptr, driver_->ModuleLoadData != nullptr,
        driver_->ModuleUnload != nullptr, driver_->ModuleGetFunction != nullptr,
        driver_->ModuleGetGlobal != nullptr, driver_->LaunchKernel != nullptr}) {
    if (!there) return Unavailable("the NVIDIA driver has no functions for kernels; it is too old");
  }
  CudaContext current(driver_, context_);
  int device = 0, same_pointers = 0;
  if (driver_->CtxGetDevice(&device) != CudaDriver::kSuccess ||
      driver_->DeviceGetAttribute(&same_pointers, CudaDriver::kAttributeKernelsUseHostPointers,
                                  device) != CudaDriver::kSuccess ||
      same_pointers == 0) {
    return Unavailable("kernels of this GPU cannot access pinned memory by its host address");
  }
  const std::string code = Contents(absl::StrCat(folder, "/", kMachineCode));
  const std::string ptx = Contents(absl::StrCat(folder, "/", kPtx));
  if (code.empty() || ptx.empty()) {
    return Unavailable(
        absl::StrCat(code.empty() ? kMachineCode : kPtx, " is not in ", folder,
                     ": tfswap was built without nvcc. Install CUDA's nvcc, or set its path (",
                     "NVCC=/path/to/nvcc), and build tfswap again."));
  }
  // A driver rejects machine code of a newer CUDA; it compiles the PTX, whose version all drivers
  // for these GPUs support.
  const CudaDriver::Result by_code = driver_->ModuleLoadData(&module_, code.data());
  if (by_code != CudaDriver::kSuccess) {
    const CudaDriver::Result by_ptx = driver_->ModuleLoadData(&module_, ptx.c_str());
    if (by_ptx != CudaDriver::kSuccess) {
      module_ = nullptr;
      int version = 0;
      driver_->DriverGetVersion(&version);
      return Unavailable(absl::StrCat(
          "the driver, which is for CUDA ", version / 1000, ".", version % 1000 / 10,
          ", rejects both the kernels' machine code, "
          "made by ",
          ToolkitOf(ptx), " (", driver_->Text(by_code), "), and their PTX (", driver_->Text(by_ptx),
          "). They need compute capability 8.0 or more. Update the driver, "
          "or build tfswap again with an older nvcc "
          "(NVCC=/path/to/nvcc)."));
    }
  }
  const auto take = [&](const std::string& name, Function* function) {
    return driver_->ModuleGetFunction(function, module_, name.c_str()) == CudaDriver::kSuccess;
  };
  bool complete = true;
  for (const int bits : {32, 16}) {
    Kernels& kernels = kernels_[bits == 16];
    for (int i = 0; i < kGpuKernels; ++i) {
      complete &= take(absl::StrCat("tfswap_encode_", kNames[i], "_", bits), &kernels.encode[i]);
      complete &= take(absl::StrCat("tfswap_decode_", kNames[i], "_", bits), &kernels.decode[i]);
    }
    complete &= take(absl::StrCat("tfswap_count_zeros_", bits), &kernels.count_zeros);
  }
  size_t bytes = 0;
  complete &= driver_->ModuleGetGlobal(&tallies_, &bytes, module_, "tfswap_codec_tallies") ==
                  CudaDriver::kSuccess &&
              bytes == sizeof(gpu_codec::Tally) * gpu_codec::kTallies;
  if (complete) return absl::OkStatus();
  return Unavailable(
      absl::StrCat(folder, "/", kMachineCode, " does not match the library. Build tfswap again."));
}

CudaCodecs::~CudaCodecs() {
  if (module_ == nullptr) return;
  CudaContext current(driver_, context_);
  driver_->ModuleUnload(module_);
}

int64_t CudaCodecs::MaxBytes(int64_t bytes) {
  return static_cast<int64_t>(gpu_codec::MaxFarBytes(static_cast<uint64_t>(bytes)));
}

int64_t CudaCodecs::ExpectedBytes(GpuCodec codec, int element_bytes, int64_t bytes, double zeros) {
  const auto section_bytes =
      static_cast<double>(std::min<int64_t>(bytes, gpu_codec::kSectionBytes));
  const double words = section_bytes / element_bytes;
  const double values = words * (1 - zeros);
  double index_bytes = 0;
  switch (codec) {
    case GpuCodec::kZvc:
      index_bytes = words / 8;
      break;
    case GpuCodec::kRle:
      index_bytes = sizeof(uint16_t) * (1 + 2 * words * zeros * (1 - zeros));
      break;
    case GpuCodec::kCsr:
      index_bytes = sizeof(uint16_t) * values;
      break;
    case GpuCodec::kLz4:
    case GpuCodec::kAns:
      return bytes;  // independent of zeros
  }
  const double packed_bytes = values < 0.5 ? 0 : values * element_bytes + index_bytes;
  const double unused_bytes = packed_bytes > 0 ? gpu_codec::kFarUnitBytes / 2 : 0;
  const double far_bytes = std::min(packed_bytes + unused_bytes, section_bytes);
  const auto sections = gpu_codec::SectionCount(static_cast<uint64_t>(bytes));
  return static_cast<int64_t>(gpu_codec::SectionsBegin(static_cast<uint64_t>(bytes))) +
         static_cast<int64_t>(far_bytes * static_cast<double>(sections));
}

bool CudaCodecs::IsAligned(const void* gpu, const void* far_block) {
  return reinterpret_cast<uintptr_t>(gpu) % kUnitBytes == 0 &&
         reinterpret_cast<uintptr_t>(far_block) % gpu_codec::kFarLineBytes == 0;
}

int64_t CudaCodecs::EncodedBytes(const void* far_block) {
  return static_cast<int64_t>(static_cast<const gpu_codec::FarHeader*>(far_block)->far_bytes);
}

int64_t CudaCodecs::ZeroElements(const void* far_block) {
  return static_cast<int64_t>(static_cast<const gpu_codec::FarHeader*>(far_block)->zero_words);
}

absl::Status CudaCodecs::Encode(GpuCodec codec, int element_bytes, const void* source,
                                int64_t bytes, void* far_block, Stream stream,
                                const CodecLaunch& launch, uint64_t* far_bytes) {
  const absl::Status status = Check(element_bytes, source, bytes, far_block);
  if (!status.ok()) return status;
  if (UsesNvcomp(codec)) return NvcompNotLoaded(codec);
  absl::StatusOr<CudaDriver::DevicePointer> tally = TallyOf(stream);
  if (!tally.ok()) return tally.status();
  auto size = static_cast<uint64_t>(bytes);
  void* arguments[] = {&source, &size, &far_block, &*tally, &far_bytes};
  return Start("encoding", KernelsOf(element_bytes).encode[static_cast<int>(codec)], stream, launch,
               arguments);
}

absl::Status CudaCodecs::Decode(GpuCodec codec, int element_bytes, void* target, int64_t bytes,
                                const void* far_block, Stream stream, const CodecLaunch& launch) {
  const absl::Status status = Check(element_bytes, target, bytes, far_block);
  if (!status.ok()) return status;
  if (UsesNvcomp(codec)) return NvcompNotLoaded(codec);
  auto size = static_cast<uint64_t>(bytes);
  void* arguments[] = {&far_block, &size, &target};
  return Start("decoding", KernelsOf(element_bytes).decode[static_cast<int>(codec)], stream, launch,
               arguments);
}

absl::Status CudaCodecs::CountZeros(int element_bytes, const void* source, int64_t bytes, int every,
                                    ZeroCount* count, Stream stream, const CodecLaunch& launch) {
  const absl::Status status = Check(element_bytes, source, bytes, nullptr);
  if (!status.ok()) return status;
  absl::StatusOr<CudaDriver::DevicePointer> tally = TallyOf(stream);
  if (!tally.ok()) return tally.status();
  if (every < 1) return absl::InvalidArgumentError("tfswap: every must be at least 1");
  auto size = static_cast<uint64_t>(bytes);
  auto step = static_cast<uint32_t>(every);
  void* arguments[] = {&source, &size, &step, &count, &*tally};
  return Start("counting zeros", KernelsOf(element_bytes).count_zeros, stream, launch, arguments);
}

absl::StatusOr<CudaCodecs::Function> CudaCodecs::Kernel(const char* name) const {
  CudaContext current(driver_, context_);
  Function function = nullptr;
  if (driver_->ModuleGetFunction(&function, module_, name) == CudaDriver::kSuccess) return function;
  return Unavailable(absl::StrCat(kMachineCode, " has no ", name, ". Build tfswap again."));
}

absl::StatusOr<CudaDriver::DevicePointer> CudaCodecs::TallyOf(Stream stream) {
  std::lock_guard<std::mutex> lock(mu_);
  const auto [it, is_new] = tally_of_.emplace(stream, static_cast<int>(tally_of_.size()));
  if (is_new && it->second >= gpu_codec::kTallies) {
    tally_of_.erase(it);
    return absl::ResourceExhaustedError(
        absl::StrCat("tfswap: at most ", gpu_codec::kTallies, " streams of a GPU may use codecs"));
  }
  return tallies_ + static_cast<unsigned>(it->second) * sizeof(gpu_codec::Tally);
}

absl::Status CudaCodecs::Check(int element_bytes, const void* gpu, int64_t bytes,
                               const void* far_block) {
  if (element_bytes != 4 && element_bytes != 2) {
    return absl::InvalidArgumentError(
        absl::StrCat("tfswap: codecs support elements of 4 and 2 bytes; got ", element_bytes));
  }
  if (bytes < 0)
    return absl::InvalidArgumentError("tfswap: the size of a tensor must not be negative");
  if (reinterpret_cast<uintptr_t>(gpu) % kUnitBytes != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("tfswap: codecs need tensors aligned to ", kUnitBytes));
  }
  if (reinterpret_cast<uintptr_t>(far_block) % gpu_codec::kFarLineBytes != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("tfswap: codecs need far memory aligned to ", gpu_codec::kFarLineBytes));
  }
  return absl::OkStatus();
}

absl::Status CudaCodecs::CheckLaunch(const CodecLaunch& launch) {
  if (launch.blocks >= 1 && launch.threads >= 32 && launch.threads <= 1024 &&
      launch.threads % 32 == 0) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("tfswap: a codec needs at least 1 block, of 32, 64, 96 to 1024 threads; got ",
                   launch.blocks, " blocks of ", launch.threads));
}

absl::Status CudaCodecs::Start(const char* doing, Function function, Stream stream,
                               const CodecLaunch& launch, void** arguments) {
  const absl::Status status = CheckLaunch(launch);
  if (!status.ok()) return status;
  CudaContext current(driver_, context_);
  const CudaDriver::Result result = driver_->LaunchKernel(
      function, static_cast<unsigned>(launch.blocks), 1, 1, static_cast<unsigned>(launch.threads),
      1, 1, 0, stream, arguments, nullptr);
  if (result == CudaDriver::kSuccess) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("tfswap: ", doing, ": ", driver_->Text(result)));
}

}  // namespace tfswap
