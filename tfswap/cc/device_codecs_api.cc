// Codecs that are a GPU's own work, to Python (by ctypes, as c_api.cc).

#include <string>

#include "core/util/c_text.h"
#include "device/device_table.h"
#include "kernels/copy_engine.h"
#include "kernels/device_codecs.h"

namespace {

using ::tfswap::AllocatorOf;
using ::tfswap::CodecTimes;
using ::tfswap::Copied;
using ::tfswap::CopyEngine;
using ::tfswap::DeviceCodecs;

// A device's own codecs; null, and `problem` says why, where there are none.
DeviceCodecs* CodecsOf(int device, std::string* problem) {
  DeviceCodecs* codecs = CopyEngine::For(AllocatorOf(device))->codecs();
  *problem = codecs == nullptr ? "tfswap: a CPU has no codecs of its own" : codecs->Problem();
  return problem->empty() ? codecs : nullptr;
}

}  // namespace

extern "C" {

// "" or why the device has none.
char* tfswap_codec_problem(int device) {
  std::string problem;
  CodecsOf(device, &problem);
  return Copied(problem);
}

// What decides how fast they are.
char* tfswap_codec_device(int device) {
  DeviceCodecs* codecs = CopyEngine::For(AllocatorOf(device))->codecs();
  return Copied(codecs == nullptr ? "" : codecs->DeviceName());
}

int tfswap_codec_processors(int device) {
  DeviceCodecs* codecs = CopyEngine::For(AllocatorOf(device))->codecs();
  return codecs == nullptr ? 0 : codecs->Processors();
}

// Has a GPU's codec work that is a library's, at `path`. Answers "" or why it cannot.
char* tfswap_use_codec(int device, const char* codec, const char* path, int64_t workspace_bytes) {
  std::string problem;
  DeviceCodecs* codecs = CodecsOf(device, &problem);
  if (codecs == nullptr) return Copied(problem);
  const absl::Status status = codecs->Use(codec, path, workspace_bytes);
  return Copied(status.ok() ? "" : std::string(status.message()));
}

void tfswap_release_codecs(int device) {
  DeviceCodecs* codecs = CopyEngine::For(AllocatorOf(device))->codecs();
  if (codecs != nullptr) codecs->Release();
}

// "" or that something could not be decoded since the last call.
char* tfswap_take_codec_fault(int device, int wait) {
  DeviceCodecs* codecs = CopyEngine::For(AllocatorOf(device))->codecs();
  if (codecs == nullptr) return Copied("");
  const absl::Status status = codecs->TakeFault(wait != 0);
  return Copied(status.ok() ? "" : std::string(status.message()));
}

// Answers "" or what is wrong.
char* tfswap_set_codec_launch(int device, const char* codec, int blocks, int threads) {
  std::string problem;
  DeviceCodecs* codecs = CodecsOf(device, &problem);
  if (codecs == nullptr) return Copied(problem);
  const absl::Status status = codecs->SetLaunch(codec, {blocks, threads});
  return Copied(status.ok() ? "" : std::string(status.message()));
}

// "" or what went wrong; `found`: encoded bytes, ns to encode, ns to decode.
char* tfswap_measure_device_codec(int device, const char* codec, int word_bytes, const void* data,
                                  int64_t bytes, int blocks, int threads, int repeats,
                                  int64_t* found) {
  std::string problem;
  DeviceCodecs* codecs = CodecsOf(device, &problem);
  if (codecs == nullptr) return Copied(problem);
  const absl::StatusOr<CodecTimes> times =
      codecs->Measure(codec, word_bytes, data, bytes, {blocks, threads}, repeats);
  if (!times.ok()) return Copied(std::string(times.status().message()));
  for (const int64_t each : {times->far_bytes, times->encode_ns, times->decode_ns}) *found++ = each;
  return Copied("");
}

}  // extern "C"
