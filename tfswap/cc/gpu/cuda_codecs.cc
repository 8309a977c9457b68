#include "gpu/cuda_codecs.h"

#include <algorithm>
#include <fstream>
#include <iterator>

#include "absl/strings/str_cat.h"

namespace tfswap {

namespace {

constexpr const char* kNames[kCardCodecs] = {"zvc", "rle", "csr", "lz4", "ans"};
constexpr const char* kMachineCode = "codec_kernels.fatbin";
constexpr const char* kPtx = "codec_kernels.ptx";
// What a thread moves at once, and where far blocks begin.
constexpr uintptr_t kUnitBytes = 16;

absl::Status Without(const std::string& why) {
  return absl::FailedPreconditionError(
      absl::StrCat("tfswap: codecs on the GPU are not available: ", why));
}

absl::Status NotOfOurs(GpuCodec codec) {
  return absl::FailedPreconditionError(absl::StrCat(
      "tfswap: ", GpuCodecName(codec), " on the GPU is nvCOMP's, which is not in use"));
}

std::string Contents(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// The CUDA that a PTX's head names, which made the machine code too.
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

absl::StatusOr<GpuCodec> ParseCardCodec(std::string_view name) {
  for (int i = 0; i < kCardCodecs; ++i) {
    if (name == kNames[i]) return static_cast<GpuCodec>(i);
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "tfswap: there is no codec '", name, "' on the GPU; there are zvc, rle, csr, lz4 and ans"));
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
    if (!there) return Without("the NVIDIA driver has no functions for kernels; it is too old");
  }
  CudaContext current(driver_, context_);
  int device = 0, same_pointers = 0;
  if (driver_->CtxGetDevice(&device) != CudaDriver::kSuccess ||
      driver_->DeviceGetAttribute(&same_pointers, CudaDriver::kAttributeKernelsUseHostPointers,
                                  device) != CudaDriver::kSuccess ||
      same_pointers == 0) {
    return Without("this GPU's kernels cannot use the host's addresses of pinned memory");
  }
  const std::string code = Contents(absl::StrCat(folder, "/", kMachineCode));
  const std::string ptx = Contents(absl::StrCat(folder, "/", kPtx));
  if (code.empty() || ptx.empty()) {
    return Without(absl::StrCat(
        code.empty() ? kMachineCode : kPtx, " is not in ", folder,
        ": tfswap was built where there was no nvcc. Install CUDA's nvcc, or name it (",
        "NVCC=/path/to/nvcc), and build tfswap again."));
  }
  // A driver takes no machine code of a newer CUDA than its own; the PTX is of a version that each
  // driver for these GPUs knows, and compiled by it.
  const CudaDriver::Result by_code = driver_->ModuleLoadData(&module_, code.data());
  if (by_code != CudaDriver::kSuccess) {
    const CudaDriver::Result by_ptx = driver_->ModuleLoadData(&module_, ptx.c_str());
    if (by_ptx != CudaDriver::kSuccess) {
      module_ = nullptr;
      int version = 0;
      driver_->DriverGetVersion(&version);
      return Without(absl::StrCat(
          "the driver, which is for CUDA ", version / 1000, ".", version % 1000 / 10,
          ", takes neither the kernels' machine code, "
          "made by ",
          ToolkitOf(ptx), " (", driver_->Text(by_code), "), nor their PTX (", driver_->Text(by_ptx),
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
    for (int i = 0; i < kCardKernels; ++i) {
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
  return Without(absl::StrCat(folder, "/", kMachineCode,
                              " is of another tfswap than the library. Build tfswap again."));
}

CudaCodecs::~CudaCodecs() {
  if (module_ == nullptr) return;
  CudaContext current(driver_, context_);
  driver_->ModuleUnload(module_);
}

int64_t CudaCodecs::MostBytes(int64_t bytes) {
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
      return bytes;  // it does not go by zeros
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
  if (IsOfNvcomp(codec)) return NotOfOurs(codec);
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
  if (IsOfNvcomp(codec)) return NotOfOurs(codec);
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
  if (every < 1) return absl::InvalidArgumentError("tfswap: every 4 KiB at most can be looked at");
  auto size = static_cast<uint64_t>(bytes);
  auto step = static_cast<uint32_t>(every);
  void* arguments[] = {&source, &size, &step, &count, &*tally};
  return Start("counting zeros", KernelsOf(element_bytes).count_zeros, stream, launch, arguments);
}

absl::StatusOr<CudaCodecs::Function> CudaCodecs::Kernel(const char* name) const {
  CudaContext current(driver_, context_);
  Function function = nullptr;
  if (driver_->ModuleGetFunction(&function, module_, name) == CudaDriver::kSuccess) return function;
  return Without(absl::StrCat(kMachineCode, " has no ", name, ". Build tfswap again."));
}

absl::StatusOr<CudaDriver::DevicePointer> CudaCodecs::TallyOf(Stream stream) {
  std::lock_guard<std::mutex> lock(mu_);
  const auto [it, is_new] = tally_of_.emplace(stream, static_cast<int>(tally_of_.size()));
  if (is_new && it->second >= gpu_codec::kTallies) {
    tally_of_.erase(it);
    return absl::ResourceExhaustedError(
        absl::StrCat("tfswap: at most ", gpu_codec::kTallies, " streams of a GPU may encode"));
  }
  return tallies_ + static_cast<unsigned>(it->second) * sizeof(gpu_codec::Tally);
}

absl::Status CudaCodecs::Check(int element_bytes, const void* gpu, int64_t bytes,
                               const void* far_block) {
  if (element_bytes != 4 && element_bytes != 2) {
    return absl::InvalidArgumentError(
        absl::StrCat("tfswap: codecs know elements of 4 and 2 bytes, not of ", element_bytes));
  }
  if (bytes < 0) return absl::InvalidArgumentError("tfswap: a tensor has no negative size");
  if (reinterpret_cast<uintptr_t>(gpu) % kUnitBytes != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("tfswap: codecs need a tensor that begins at a multiple of ", kUnitBytes));
  }
  if (reinterpret_cast<uintptr_t>(far_block) % gpu_codec::kFarLineBytes != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("tfswap: codecs need far memory at a multiple of ", gpu_codec::kFarLineBytes));
  }
  return absl::OkStatus();
}

absl::Status CudaCodecs::CheckLaunch(const CodecLaunch& launch) {
  if (launch.blocks >= 1 && launch.threads >= 32 && launch.threads <= 1024 &&
      launch.threads % 32 == 0) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "tfswap: a codec runs in 1 block or more, of 32, 64, 96 to 1024 threads; not in ",
      launch.blocks, " of ", launch.threads));
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
