#include "gpu/cuda_gpu.h"

#include <dlfcn.h>

#include <algorithm>
#include <cmath>
#include <fstream>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "core/memory/page_blocks.h"
#include "core/util/readable_bytes.h"

namespace tfswap {

namespace {

constexpr absl::string_view kMessagePrefix = "tfswap: ";

}  // namespace

std::string FolderOfKernels() {
  Dl_info info;
  if (dladdr(reinterpret_cast<void*>(&FolderOfKernels), &info) == 0) return "";
  const std::string library = info.dli_fname;
  return library.substr(0, library.rfind('/')) + "/..";
}

absl::StatusOr<CudaGpu*> CudaGpu::Make(void* compute) {
  std::string why;
  const CudaDriver* driver = CudaDriver::Get(&why);
  if (driver == nullptr) return absl::FailedPreconditionError(absl::StrCat("tfswap: ", why));
  auto* stream = static_cast<CudaDriver::Stream>(compute);
  CudaDriver::Context context = nullptr;
  CudaDriver::Result result = driver->StreamGetCtx(stream, &context);
  if (result != CudaDriver::kSuccess) {
    return absl::InternalError(
        absl::StrCat("tfswap: no context of TensorFlow's stream: ", driver->Text(result)));
  }
  std::unique_ptr<CudaGpu> gpu(new CudaGpu(driver, context, stream));
  const Current current(gpu.get());
  int least = 0, greatest = 0;
  gpu->Check("asking for priorities", driver->CtxGetStreamPriorityRange(&least, &greatest));
  for (const Queue queue : kCopyQueues) {
    // Copies have their own engines; if they have to share, compute waits for them, so give them
    // priority.
    if (!gpu->Check("making a stream",
                    driver->StreamCreateWithPriority(&gpu->streams_[static_cast<int>(queue)],
                                                     CudaDriver::kStreamNonBlocking, greatest))) {
      break;
    }
  }
  if (gpu->failed()) return gpu->status();
  gpu->numa_node_ = gpu->NumaNode();
  return gpu.release();
}

Gpu::Event CudaGpu::Record(Queue queue) {
  const Current current(this);
  CudaDriver::Event event = nullptr;
  {
    std::lock_guard<std::mutex> lock(mu_);
    if (!idle_events_.empty()) {
      event = idle_events_.back();
      idle_events_.pop_back();
    }
  }
  if (event == nullptr) {
    Check("making an event", driver_->EventCreate(&event, CudaDriver::kEventDisableTiming));
  }
  Check("recording an event", driver_->EventRecord(event, stream(queue)));
  return event;
}

void CudaGpu::Wait(Queue queue, Event event) {
  const Current current(this);
  const auto wait = [&] {
    Check("waiting for an event",
          driver_->StreamWaitEvent(stream(queue), static_cast<CudaDriver::Event>(event), 0));
  };
  if (queue == Queue::kCompute) {
    clock_.Wait(wait);
  } else {
    wait();
  }
}

bool CudaGpu::HasHappened(Event event) {
  const Current current(this);
  const CudaDriver::Result result = driver_->EventQuery(static_cast<CudaDriver::Event>(event));
  return result != CudaDriver::kNotReady && Check("looking at an event", result);
}

void CudaGpu::Recycle(Event event) {
  std::lock_guard<std::mutex> lock(mu_);
  idle_events_.push_back(static_cast<CudaDriver::Event>(event));
}

bool CudaGpu::Move(Queue queue, const Transfer& transfer) {
  if (failed()) return false;  // one of its waits may be missing
  if (transfer.form.kind == Form::Kind::kPlain) return Copy(queue, transfer);
  const absl::Status status = EncodeOrDecode(queue, transfer);
  if (status.ok()) return true;
  Fail(std::string(absl::StripPrefix(status.message(), kMessagePrefix)));
  return false;
}

bool CudaGpu::Copy(Queue queue, const Transfer& transfer) {
  const Current current(this);
  const auto block = reinterpret_cast<CudaDriver::DevicePointer>(transfer.block);
  const auto size = static_cast<size_t>(transfer.block_bytes);
  if (IsOut(queue)) {
    return Check("copying out",
                 driver_->MemcpyDtoHAsync(transfer.host, block, size, stream(queue)));
  }
  return Check("copying in", driver_->MemcpyHtoDAsync(block, transfer.host, size, stream(queue)));
}

absl::Status CudaGpu::EncodeOrDecode(Queue queue, const Transfer& transfer) {
  absl::StatusOr<CudaCodecs*> codecs = Codecs();
  if (!codecs.ok()) return codecs.status();
  const Form& form = transfer.form;
  if (form.kind == Form::Kind::kZeroCount) {
    return (*codecs)->CountZeros(form.word_bytes, transfer.block, transfer.block_bytes, form.every,
                                 static_cast<CudaCodecs::ZeroCount*>(transfer.host), stream(queue));
  }
  const auto codec = static_cast<GpuCodec>(form.codec);
  const CodecLaunch launch = LaunchOf(codec);
  const std::shared_ptr<NvcompCodec> nvcomp = Nvcomp(codec);
  if (form.kind == Form::Kind::kWeights) {
    if (nvcomp == nullptr) return absl::InternalError("tfswap: only nvCOMP's codecs weigh");
    return nvcomp->Weigh(form.word_bytes, transfer.block, transfer.block_bytes,
                         static_cast<uint64_t*>(transfer.host), stream(queue));
  }
  if (nvcomp != nullptr && queue == Queue::kOut) {
    return nvcomp->Encode(form.word_bytes, transfer.block, transfer.block_bytes, transfer.host,
                          stream(queue), launch, form.far_bytes);
  }
  if (nvcomp != nullptr) {
    return nvcomp->Decode(form.word_bytes, transfer.block, transfer.block_bytes, transfer.host,
                          stream(queue), launch);
  }
  if (queue == Queue::kOut) {
    return (*codecs)->Encode(codec, form.word_bytes, transfer.block, transfer.block_bytes,
                             transfer.host, stream(queue), launch, form.far_bytes);
  }
  return (*codecs)->Decode(codec, form.word_bytes, transfer.block, transfer.block_bytes,
                           transfer.host, stream(queue), launch);
}

absl::StatusOr<CudaCodecs*> CudaGpu::Codecs() {
  std::lock_guard<std::mutex> lock(mu_);
  if (!codecs_loaded_) {
    codecs_loaded_ = true;
    codecs_ = CudaCodecs::Make(driver_, context_, FolderOfKernels());
  }
  if (!codecs_.ok()) return codecs_.status();
  return codecs_->get();
}

void CudaGpu::SetNvcomp(GpuCodec codec, std::shared_ptr<NvcompCodec> own) {
  std::lock_guard<std::mutex> lock(mu_);
  nvcomp_[static_cast<int>(codec) - kGpuKernels] = std::move(own);
}

std::shared_ptr<NvcompCodec> CudaGpu::Nvcomp(GpuCodec codec) const {
  if (!UsesNvcomp(codec)) return nullptr;
  std::lock_guard<std::mutex> lock(mu_);
  return nvcomp_[static_cast<int>(codec) - kGpuKernels];
}

bool CudaGpu::CanUse(GpuCodec codec) {
  return UsesNvcomp(codec) ? Nvcomp(codec) != nullptr : Codecs().ok();
}

void CudaGpu::SetLaunch(GpuCodec codec, const CodecLaunch& launch) {
  std::lock_guard<std::mutex> lock(mu_);
  launches_[static_cast<int>(codec)] = launch;
}

CodecLaunch CudaGpu::LaunchOf(GpuCodec codec) const {
  std::lock_guard<std::mutex> lock(mu_);
  return launches_[static_cast<int>(codec)];
}

std::string CudaGpu::Name() const {
  const CudaContext current(driver_, context_);
  int device = 0;
  char name[128] = "unknown";
  size_t bytes = 0;
  if (driver_->CtxGetDevice != nullptr && driver_->CtxGetDevice(&device) == CudaDriver::kSuccess) {
    if (driver_->DeviceGetName != nullptr) driver_->DeviceGetName(name, sizeof(name), device);
    if (driver_->DeviceTotalMem != nullptr) driver_->DeviceTotalMem(&bytes, device);
  }
  return absl::StrCat(name, " ", bytes >> 20, " MiB");
}

int CudaGpu::Processors() const {
  const CudaContext current(driver_, context_);
  int device = 0, count = 0;
  if (driver_->CtxGetDevice != nullptr && driver_->DeviceGetAttribute != nullptr &&
      driver_->CtxGetDevice(&device) == CudaDriver::kSuccess) {
    driver_->DeviceGetAttribute(&count, CudaDriver::kAttributeProcessors, device);
  }
  return std::max(count, 1);
}

void CudaGpu::Finish(Queue queue) {
  const Current current(this);
  Check("waiting for a stream", driver_->StreamSynchronize(stream(queue)));
}

void CudaGpu::FinishAll() {
  Finish(Queue::kCompute);
  for (const Queue queue : kCopyQueues) Finish(queue);
}

absl::Status CudaGpu::Time(std::vector<Timed>* timed, int times) {
  const Current current(this);
  std::vector<CudaDriver::Event> events(2 * timed->size(), nullptr);
  bool ok = true;
  for (CudaDriver::Event& event : events) {
    ok = ok && Check("making an event", driver_->EventCreate(&event, CudaDriver::kEventDefault));
  }
  for (size_t i = 0; ok && i < timed->size(); ++i) {
    ok =
        Check("recording an event", driver_->EventRecord(events[2 * i], stream((*timed)[i].queue)));
  }
  for (int time = 0; time < times; ++time) {
    for (const Timed& each : *timed) ok = ok && Move(each.queue, each.transfer);
  }
  for (size_t i = 0; ok && i < timed->size(); ++i) {
    ok = Check("recording an event",
               driver_->EventRecord(events[2 * i + 1], stream((*timed)[i].queue)));
  }
  for (size_t i = 0; ok && i < timed->size(); ++i) {
    float ms = 0;
    ok = Check("waiting for an event", driver_->EventSynchronize(events[2 * i + 1])) &&
         Check("reading a time", driver_->EventElapsedTime(&ms, events[2 * i], events[2 * i + 1]));
    (*timed)[i].ns = std::llround(static_cast<double>(ms) * 1e6);
  }
  for (const CudaDriver::Event event : events) {
    if (event != nullptr) driver_->EventDestroy(event);
  }
  return status();
}

int CudaGpu::NumaNode() const {
  int device = 0, node = -1;
  char bus_id[32] = "";
  if (driver_->CtxGetDevice == nullptr || driver_->DeviceGetPCIBusId == nullptr ||
      driver_->CtxGetDevice(&device) != CudaDriver::kSuccess ||
      driver_->DeviceGetPCIBusId(bus_id, sizeof(bus_id), device) != CudaDriver::kSuccess) {
    return -1;
  }
  std::ifstream file("/sys/bus/pci/devices/" + absl::AsciiStrToLower(bus_id) + "/numa_node");
  return file >> node ? node : -1;
}

HostPool::Source::Taken CudaGpu::TakePinned(int64_t bytes) {
  const auto size = static_cast<size_t>(bytes);
  constexpr unsigned kFlags = CudaDriver::kHostPortable | CudaDriver::kHostDeviceMap;
  void* begin = AllocatePageBlock(size);
  CudaDriver::Result registered = CudaDriver::kOutOfMemory;
  if (begin != nullptr) PreferNode(begin, size, numa_node_);
  if (begin != nullptr) TouchPages(begin, size);
  const Current current(this);
  if (begin != nullptr) registered = driver_->MemHostRegister(begin, size, kFlags);
  if (registered == CudaDriver::kSuccess) return {begin, ""};
  if (begin != nullptr) FreePageBlock(begin, size);

  void* allocated = nullptr;
  const CudaDriver::Result result = driver_->MemHostAlloc(&allocated, size, kFlags);
  if (result == CudaDriver::kSuccess) {
    std::lock_guard<std::mutex> lock(mu_);
    from_driver_.insert(allocated);
    return {allocated, ""};
  }
  return {nullptr, absl::StrCat("tfswap: pinning ", ReadableBytes(bytes),
                                " of host memory: ", driver_->Text(registered),
                                "; allocating them by the driver: ", driver_->Text(result))};
}

void CudaGpu::GivePinnedBack(void* begin, int64_t bytes) {
  const Current current(this);
  bool from_driver;
  {
    std::lock_guard<std::mutex> lock(mu_);
    from_driver = from_driver_.erase(begin) > 0;
  }
  if (from_driver) {
    Check("freeing host memory", driver_->MemFreeHost(begin));
  } else if (Check("unpinning host memory", driver_->MemHostUnregister(begin))) {
    FreePageBlock(begin, static_cast<size_t>(bytes));
  }
}

absl::Status CudaGpu::status() const {
  std::lock_guard<std::mutex> lock(mu_);
  if (error_.empty()) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("tfswap: ", error_));
}

bool CudaGpu::Check(const char* doing, CudaDriver::Result result) {
  if (result == CudaDriver::kSuccess) return true;
  Fail(absl::StrCat(doing, ": ", driver_->Text(result)));
  return false;
}

void CudaGpu::Fail(std::string error) {
  std::lock_guard<std::mutex> lock(mu_);
  if (error_.empty()) error_ = std::move(error);
  failed_.store(true, std::memory_order_release);
}

}  // namespace tfswap
