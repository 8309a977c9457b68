#include "gpu/nvcomp_codec.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace tfswap {

using ::tfswap::gpu_codec::Batch;
using ::tfswap::gpu_codec::Filler;
using ::tfswap::gpu_codec::kBatchSectionBytes;

namespace {

// Alignment of the parts of the workspace, and of each packed section.
constexpr size_t kAlignment = 256;
constexpr size_t kMaxAlignment = 16;  // of tensors
constexpr size_t kMaxSections = 4096;
constexpr size_t kFillerBytes = 4096;
constexpr uint32_t kMaxWeighed = 16;
constexpr int kLayThreads = 256;

uint32_t SectionsOf(int64_t bytes) {
  return static_cast<uint32_t>(
      gpu_codec::SectionCount(static_cast<uint64_t>(bytes), kBatchSectionBytes));
}

// Device arrays with the types that nvCOMP expects.
const void* const* Const(unsigned char** blocks) {
  return reinterpret_cast<const void* const*>(blocks);
}
void* const* Untyped(unsigned char** blocks) { return reinterpret_cast<void* const*>(blocks); }

// Divides a block into consecutive parts.
class Carver {
 public:
  explicit Carver(uintptr_t begin) : begin_(begin), at_(begin) {}

  template <typename T>
  T* Take(size_t count) {
    at_ = gpu_codec::RoundUp<uintptr_t>(at_, kAlignment);
    auto* part = reinterpret_cast<T*>(at_);
    at_ += count * sizeof(T);
    return part;
  }
  size_t bytes() const { return at_ - begin_; }

 private:
  const uintptr_t begin_;
  uintptr_t at_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<NvcompCodec>> NvcompCodec::Make(CudaCodecs* codecs,
                                                               const Nvcomp* library,
                                                               GpuCodec codec, void* workspace,
                                                               int64_t bytes, uint64_t* fault,
                                                               Stream stream) {
  std::unique_ptr<NvcompCodec> made(new NvcompCodec(codecs, library, codec, fault));
  absl::Status status = made->CheckLibrary();
  if (status.ok()) status = made->TakeKernels();
  if (status.ok()) status = made->Divide(workspace, static_cast<size_t>(bytes), stream);
  for (const int word_bytes : {4, 2}) {
    if (status.ok()) status = made->MakeFiller(word_bytes, stream);
  }
  if (!status.ok()) return status;
  return made;
}

absl::Status NvcompCodec::CheckLibrary() {
  int driver_version = 0;
  codecs_->driver()->DriverGetVersion(&driver_version);
  const int library_major = library_->cuda_version() / 1000, major = driver_version / 1000;
  if (library_major > major) {
    return absl::FailedPreconditionError(
        absl::StrCat("tfswap: nvCOMP ", library_->Version(), " is for CUDA ", library_major,
                     ", and the driver for CUDA ", major, ": pip uninstall nvidia-nvcomp-cu",
                     library_major, "; pip install nvidia-nvcomp-cu", major));
  }
  for (const int word_bytes : {4, 2}) {
    const absl::StatusOr<nvcomp::Alignments> most = method_.MaxAlignments(word_bytes);
    if (!most.ok()) return most.status();
    if (std::max(most->input, most->output) > kMaxAlignment || most->temp > kAlignment) {
      return absl::FailedPreconditionError(absl::StrCat(
          "tfswap: nvCOMP ", library_->Version(), " needs tensors at multiples of ",
          std::max(most->input, most->output), ", and they are at those of ", kMaxAlignment));
    }
  }
  return absl::OkStatus();
}

absl::Status NvcompCodec::TakeKernels() {
  const std::pair<const char*, CudaDriver::Function*> wanted[] = {
      {"tfswap_lay_batch", &kernels_.lay},
      {"tfswap_pack_batch", &kernels_.pack},
      {"tfswap_unpack_batch", &kernels_.unpack},
      {"tfswap_check_batch", &kernels_.check},
      {"tfswap_weigh_batch", &kernels_.weigh}};
  for (const auto& [name, function] : wanted) {
    const absl::StatusOr<CudaDriver::Function> found = codecs_->Kernel(name);
    if (!found.ok()) return found.status();
    *function = *found;
  }
  return absl::OkStatus();
}

absl::Status NvcompCodec::Divide(void* workspace, size_t bytes, Stream stream) {
  const auto begin = reinterpret_cast<uintptr_t>(workspace);
  for (const int word_bytes : {4, 2}) {
    const absl::StatusOr<size_t> most = method_.MaxPackedBytes(word_bytes, kBatchSectionBytes);
    const absl::StatusOr<size_t> of_filler = method_.MaxPackedBytes(word_bytes, kFillerBytes);
    if (!most.ok()) return most.status();
    if (!of_filler.ok()) return of_filler.status();
    packed_stride_ = std::max({packed_stride_, *most, size_t{kBatchSectionBytes}});
    filler_room_bytes_ = std::max(filler_room_bytes_, *of_filler);
  }
  packed_stride_ = gpu_codec::RoundUp(packed_stride_, kAlignment);
  const absl::StatusOr<size_t> least = LayOut(1, begin, stream);
  if (!least.ok()) return least.status();
  if (*least > bytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("tfswap: ", GpuCodecName(codec_), " needs a workspace of ", *least,
                     " bytes on the GPU at least, and has ", bytes));
  }
  size_t fits = 1, too_many = kMaxSections + 1;
  while (too_many - fits > 1) {
    const size_t middle = (fits + too_many) / 2;
    const absl::StatusOr<size_t> taken = LayOut(middle, begin, stream);
    if (!taken.ok()) return taken.status();
    (*taken <= bytes ? fits : too_many) = middle;
  }
  sections_ = static_cast<uint32_t>(fits);
  return LayOut(fits, begin, stream).status();
}

absl::StatusOr<size_t> NvcompCodec::LayOut(size_t sections, uintptr_t begin, Stream stream) {
  size_t pack_bytes = 0;
  for (const int word_bytes : {4, 2}) {
    const absl::StatusOr<size_t> temp = method_.PackTempBytes(word_bytes, sections, stream);
    if (!temp.ok()) return temp.status();
    pack_bytes = std::max(pack_bytes, *temp);
  }
  const absl::StatusOr<size_t> unpack_bytes = method_.UnpackTempBytes(sections, stream);
  if (!unpack_bytes.ok()) return unpack_bytes.status();
  out_.temp_bytes = pack_bytes;
  in_.temp_bytes = *unpack_bytes;
  Carver carver(begin);
  for (Direction* direction : {&out_, &in_}) {
    Batch& batch = direction->batch;
    batch.from = carver.Take<unsigned char*>(sections);
    batch.from_bytes = carver.Take<size_t>(sections);
    batch.to = carver.Take<unsigned char*>(sections);
    batch.to_bytes = carver.Take<size_t>(sections);
    batch.room_bytes = carver.Take<size_t>(sections);
    batch.statuses = carver.Take<int>(sections);
    batch.packed = carver.Take<unsigned char>(sections * packed_stride_);
    batch.packed_stride = packed_stride_;
    direction->temp = carver.Take<unsigned char>(direction->temp_bytes);
  }
  auto* plain = carver.Take<unsigned char>(kFillerBytes);
  for (Filler& filler : fillers_) {
    filler.packed = carver.Take<unsigned char>(filler_room_bytes_);
    filler.packed_bytes = carver.Take<size_t>(1);
    filler.plain = plain;
    filler.plain_bytes = kFillerBytes;
  }
  return carver.bytes();
}

absl::Status NvcompCodec::MakeFiller(int word_bytes, Stream stream) {
  const Filler& filler = fillers_[word_bytes == 2];
  Batch batch = out_.batch;
  batch.packed = filler.packed;
  batch.to_bytes = const_cast<size_t*>(filler.packed_bytes);
  const CudaDriver* driver = codecs_->driver();
  CudaContext current(driver, codecs_->context());
  absl::Status status = LayOutBatch(filler.plain, kFillerBytes, 0, 1, 1, batch, 0, stream);
  if (status.ok()) status = PackOnGpu(word_bytes, 1, batch, stream, kFillerBytes);
  if (!status.ok()) return status;
  size_t packed_bytes = 0;
  int packed = gpu_codec::kStatusUnset;
  const auto read = [&](void* to, const void* from, size_t bytes) {
    return driver->MemcpyDtoHAsync(to, reinterpret_cast<CudaDriver::DevicePointer>(from), bytes,
                                   stream) == CudaDriver::kSuccess;
  };
  const bool copied = read(&packed_bytes, filler.packed_bytes, sizeof(packed_bytes)) &&
                      read(&packed, batch.statuses, sizeof(packed)) &&
                      driver->StreamSynchronize(stream) == CudaDriver::kSuccess;
  if (copied && packed == nvcomp::kSuccess && packed_bytes > 0 &&
      packed_bytes <= filler_room_bytes_) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(absl::StrCat("tfswap: nvCOMP ", library_->Version(),
                                                    " does not encode on this GPU (status ", packed,
                                                    ", ", packed_bytes, " bytes)"));
}

absl::Status NvcompCodec::Encode(int element_bytes, const void* source, int64_t bytes,
                                 void* far_block, Stream stream, const CodecLaunch& launch,
                                 uint64_t* far_bytes) {
  absl::Status status = CheckTensor(element_bytes, source, bytes, far_block);
  if (!status.ok()) return status;
  absl::StatusOr<CudaDriver::DevicePointer> tally = codecs_->TallyOf(stream);
  if (!tally.ok()) return tally.status();
  std::lock_guard<std::mutex> lock(mu_);
  CudaContext current(codecs_->driver(), codecs_->context());
  Batch batch = out_.batch;
  auto size = static_cast<uint64_t>(bytes);
  auto codec = static_cast<uint32_t>(codec_), words = static_cast<uint32_t>(element_bytes);
  const uint32_t sections = SectionsOf(bytes);
  uint32_t count = 0;
  for (uint32_t first = 0; status.ok() && first < sections; first += count) {
    count = std::min(sections_, sections - first);
    status = LayOutBatch(source, bytes, first, 1, count, batch, *tally, stream);
    if (status.ok()) status = PackOnGpu(element_bytes, count, batch, stream);
    void* arguments[] = {&far_block, &size,  &first,  &count,    &codec,
                         &words,     &batch, &*tally, &far_bytes};
    if (status.ok()) status = codecs_->Start("encoding", kernels_.pack, stream, launch, arguments);
  }
  return status;
}

absl::Status NvcompCodec::Decode(int element_bytes, void* target, int64_t bytes,
                                 const void* far_block, Stream stream, const CodecLaunch& launch) {
  absl::Status status = CheckTensor(element_bytes, target, bytes, far_block);
  if (!status.ok()) return status;
  std::lock_guard<std::mutex> lock(mu_);
  CudaContext current(codecs_->driver(), codecs_->context());
  Batch batch = in_.batch;
  Filler filler = fillers_[element_bytes == 2];
  uint64_t* fault = fault_;
  auto size = static_cast<uint64_t>(bytes);
  const uint32_t sections = SectionsOf(bytes);
  uint32_t count = 0;
  for (uint32_t first = 0; status.ok() && first < sections; first += count) {
    count = std::min(sections_, sections - first);
    void* unpacking[] = {&far_block, &size, &first, &count, &target, &batch, &filler, &fault};
    status = codecs_->Start("decoding", kernels_.unpack, stream, launch, unpacking);
    if (!status.ok()) break;
    const nvcomp::Status given = method_.unpack(
        Const(batch.from), batch.from_bytes, batch.room_bytes, batch.to_bytes, count, in_.temp,
        in_.temp_bytes, Untyped(batch.to), method_.unpack_options(), batch.statuses, stream);
    if (given != nvcomp::kSuccess) {
      return absl::InternalError(
          absl::StrCat("tfswap: decoding: nvCOMP did not start (status ", given, ")"));
    }
    void* checking[] = {&count, &batch, &fault};
    status = codecs_->Start("checking what was decoded", kernels_.check, stream, launch, checking);
  }
  return status;
}

absl::Status NvcompCodec::Weigh(int element_bytes, const void* source, int64_t bytes,
                                uint64_t* weights, Stream stream) {
  absl::Status status = CheckTensor(element_bytes, source, bytes, nullptr);
  if (!status.ok()) return status;
  std::lock_guard<std::mutex> lock(mu_);
  CudaContext current(codecs_->driver(), codecs_->context());
  Batch batch = out_.batch;
  const uint32_t sections = SectionsOf(bytes);
  uint32_t count = std::min({sections_, sections, kMaxWeighed});
  status = LayOutBatch(source, bytes, 0, sections / count, count, batch, 0, stream);
  if (status.ok()) status = PackOnGpu(element_bytes, count, batch, stream);
  if (!status.ok()) return status;
  void* arguments[] = {&count, &batch, &weights};
  return codecs_->Start("weighing", kernels_.weigh, stream, {1, 32}, arguments);
}

absl::Status NvcompCodec::TakeFault() {
  if (__atomic_load_n(fault_, __ATOMIC_ACQUIRE) == 0) return absl::OkStatus();
  const uint64_t fault = __atomic_exchange_n(fault_, 0, __ATOMIC_ACQ_REL);
  return absl::DataLossError(absl::StrCat(
      "tfswap: a tensor that was kept by ", GpuCodecName(codec_),
      " could not be decoded when it came back (nvCOMP status ", static_cast<uint32_t>(fault),
      "), so numbers of this step are lost. Suspect the host's memory, or nvCOMP ",
      library_->Version(), "."));
}

absl::Status NvcompCodec::LayOutBatch(const void* source, int64_t bytes, uint32_t first,
                                      uint32_t every, uint32_t count, const Batch& batch,
                                      CudaDriver::DevicePointer tally, Stream stream) {
  auto size = static_cast<uint64_t>(bytes);
  Batch arrays = batch;
  void* arguments[] = {&source, &size, &first, &every, &count, &arrays, &tally};
  const auto blocks = static_cast<int>((count + kLayThreads - 1) / kLayThreads);
  return codecs_->Start("encoding", kernels_.lay, stream, {blocks, kLayThreads}, arguments);
}

absl::Status NvcompCodec::PackOnGpu(int word_bytes, uint32_t count, const Batch& batch,
                                    Stream stream, size_t max_bytes) {
  const nvcomp::Status given = method_.pack(
      Const(batch.from), batch.from_bytes, max_bytes, count, out_.temp, out_.temp_bytes,
      Untyped(batch.to), batch.to_bytes, method_.PackOptions(word_bytes), batch.statuses, stream);
  if (given == nvcomp::kSuccess) return absl::OkStatus();
  return absl::InternalError(
      absl::StrCat("tfswap: encoding: nvCOMP did not start (status ", given, ")"));
}

absl::Status NvcompCodec::CheckTensor(int element_bytes, const void* gpu, int64_t bytes,
                                      const void* far_block) const {
  const absl::Status status = CudaCodecs::Check(element_bytes, gpu, bytes, far_block);
  if (!status.ok() || (bytes > 0 && bytes % element_bytes == 0)) return status;
  return absl::InvalidArgumentError(absl::StrCat("tfswap: ", GpuCodecName(codec_),
                                                 " on the GPU needs whole elements, not ", bytes,
                                                 " bytes of elements of ", element_bytes));
}

}  // namespace tfswap
