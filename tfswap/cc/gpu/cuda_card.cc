#include "gpu/cuda_card.h"

#include <cmath>
#include <memory>

#include "absl/strings/str_cat.h"

namespace tfswap {

absl::StatusOr<CudaCard*> CudaCard::Make(void* compute) {
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
  std::unique_ptr<CudaCard> card(new CudaCard(driver, context, stream));
  CudaContext current(driver, context);
  int least = 0, greatest = 0;
  driver->CtxGetStreamPriorityRange(&least, &greatest);
  for (const Queue queue : {Queue::kOut, Queue::kIn}) {
    // Copies run on engines of their own; where they have to share, they are what others wait for.
    if (!card->Check("making a stream",
                     driver->StreamCreateWithPriority(&card->streams_[static_cast<int>(queue)],
                                                      CudaDriver::kStreamNonBlocking, greatest))) {
      return card->status();
    }
  }
  return card.release();
}

Card::Event CudaCard::Record(Queue queue) {
  CudaContext current(driver_, context_);
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

void CudaCard::Wait(Queue queue, Event event) {
  CudaContext current(driver_, context_);
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

bool CudaCard::HasHappened(Event event) {
  CudaContext current(driver_, context_);
  const CudaDriver::Result result = driver_->EventQuery(static_cast<CudaDriver::Event>(event));
  return result != CudaDriver::kNotReady && Check("looking at an event", result);
}

void CudaCard::Recycle(Event event) {
  std::lock_guard<std::mutex> lock(mu_);
  idle_events_.push_back(static_cast<CudaDriver::Event>(event));
}

bool CudaCard::Copy(Queue queue, void* to, const void* from, int64_t bytes) {
  CudaContext current(driver_, context_);
  const auto size = static_cast<size_t>(bytes);
  if (queue == Queue::kOut) {
    return Check("copying out",
                 driver_->MemcpyDtoHAsync(to, reinterpret_cast<CudaDriver::DevicePointer>(from),
                                          size, stream(queue)));
  }
  return Check("copying in",
               driver_->MemcpyHtoDAsync(reinterpret_cast<CudaDriver::DevicePointer>(to), from, size,
                                        stream(queue)));
}

void CudaCard::Finish(Queue queue) {
  CudaContext current(driver_, context_);
  Check("waiting for a stream", driver_->StreamSynchronize(stream(queue)));
}

absl::Status CudaCard::Time(std::vector<Transfer>* transfers, int64_t bytes, int copies) {
  CudaContext current(driver_, context_);
  std::vector<CudaDriver::Event> events(2 * transfers->size(), nullptr);
  bool ok = true;
  for (CudaDriver::Event& event : events) {
    ok = ok && Check("making an event", driver_->EventCreate(&event, CudaDriver::kEventDefault));
  }
  for (size_t i = 0; ok && i < transfers->size(); ++i) {
    ok = Check("recording an event",
               driver_->EventRecord(events[2 * i], stream((*transfers)[i].queue)));
  }
  for (int copy = 0; copy < copies; ++copy) {
    for (const Transfer& each : *transfers) {
      ok = ok && Copy(each.queue, each.to, each.from, bytes);
    }
  }
  for (size_t i = 0; ok && i < transfers->size(); ++i) {
    ok = Check("recording an event",
               driver_->EventRecord(events[2 * i + 1], stream((*transfers)[i].queue)));
  }
  for (size_t i = 0; ok && i < transfers->size(); ++i) {
    float ms = 0;
    ok = Check("waiting for an event", driver_->EventSynchronize(events[2 * i + 1])) &&
         Check("reading a time", driver_->EventElapsedTime(&ms, events[2 * i], events[2 * i + 1]));
    (*transfers)[i].ns = std::llround(static_cast<double>(ms) * 1e6);
  }
  for (const CudaDriver::Event event : events) {
    if (event != nullptr) driver_->EventDestroy(event);
  }
  return status();
}

absl::Status CudaCard::Pin(void* begin, int64_t bytes) {
  CudaContext current(driver_, context_);
  const CudaDriver::Result result = driver_->MemHostRegister(
      begin, static_cast<size_t>(bytes),
      CudaDriver::kHostRegisterPortable | CudaDriver::kHostRegisterDeviceMap);
  if (result == CudaDriver::kSuccess) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("tfswap: pinning ", bytes, " bytes of host memory: ", driver_->Text(result)));
}

void CudaCard::Unpin(void* begin) {
  CudaContext current(driver_, context_);
  Check("unpinning host memory", driver_->MemHostUnregister(begin));
}

absl::Status CudaCard::status() const {
  std::lock_guard<std::mutex> lock(mu_);
  return error_.empty() ? absl::OkStatus() : absl::InternalError(absl::StrCat("tfswap: ", error_));
}

bool CudaCard::Check(const char* doing, CudaDriver::Result result) {
  if (result == CudaDriver::kSuccess) return true;
  std::lock_guard<std::mutex> lock(mu_);
  if (error_.empty()) error_ = absl::StrCat(doing, ": ", driver_->Text(result));
  return false;
}

}  // namespace tfswap
