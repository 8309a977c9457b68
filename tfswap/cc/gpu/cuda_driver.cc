#include "gpu/cuda_driver.h"

#include <dlfcn.h>

namespace tfswap {

namespace {

struct Loaded {
  CudaDriver driver = {};
  std::string why;  // "" if complete
};

Loaded Load() {
  Loaded loaded;
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    loaded.why = "there is no NVIDIA driver here (libcuda.so.1)";
    return loaded;
  }
  const auto take = [&](const char* name, auto* function) {
    void* found = dlsym(library, name);
    if (found == nullptr) {
      loaded.why = std::string("the NVIDIA driver has no ") + name + ": it is too old";
    }
    *reinterpret_cast<void**>(function) = found;
  };
  CudaDriver& driver = loaded.driver;
  take("cuStreamGetCtx", &driver.StreamGetCtx);
  take("cuCtxPushCurrent_v2", &driver.CtxPushCurrent);
  take("cuCtxPopCurrent_v2", &driver.CtxPopCurrent);
  take("cuCtxGetStreamPriorityRange", &driver.CtxGetStreamPriorityRange);
  take("cuStreamCreateWithPriority", &driver.StreamCreateWithPriority);
  take("cuStreamSynchronize", &driver.StreamSynchronize);
  take("cuStreamWaitEvent", &driver.StreamWaitEvent);
  take("cuEventCreate", &driver.EventCreate);
  take("cuEventDestroy_v2", &driver.EventDestroy);
  take("cuEventRecord", &driver.EventRecord);
  take("cuEventQuery", &driver.EventQuery);
  take("cuEventSynchronize", &driver.EventSynchronize);
  take("cuEventElapsedTime", &driver.EventElapsedTime);
  take("cuMemcpyDtoHAsync_v2", &driver.MemcpyDtoHAsync);
  take("cuMemcpyHtoDAsync_v2", &driver.MemcpyHtoDAsync);
  take("cuMemHostAlloc", &driver.MemHostAlloc);
  take("cuMemFreeHost", &driver.MemFreeHost);
  take("cuMemHostRegister_v2", &driver.MemHostRegister);
  take("cuMemHostUnregister", &driver.MemHostUnregister);
  take("cuGetErrorString", &driver.GetErrorString);
  const auto may_take = [&](const char* name, auto* function) {
    *reinterpret_cast<void**>(function) = dlsym(library, name);
  };
  may_take("cuDriverGetVersion", &driver.DriverGetVersion);
  may_take("cuCtxGetDevice", &driver.CtxGetDevice);
  may_take("cuDeviceGetAttribute", &driver.DeviceGetAttribute);
  may_take("cuDeviceGetPCIBusId", &driver.DeviceGetPCIBusId);
  may_take("cuDeviceGetName", &driver.DeviceGetName);
  may_take("cuDeviceTotalMem_v2", &driver.DeviceTotalMem);
  may_take("cuModuleLoadData", &driver.ModuleLoadData);
  may_take("cuModuleUnload", &driver.ModuleUnload);
  may_take("cuModuleGetFunction", &driver.ModuleGetFunction);
  may_take("cuModuleGetGlobal_v2", &driver.ModuleGetGlobal);
  may_take("cuLaunchKernel", &driver.LaunchKernel);
  return loaded;
}

}  // namespace

const CudaDriver* CudaDriver::Get(std::string* why) {
  static const auto* loaded = new Loaded(Load());
  if (why != nullptr) *why = loaded->why;
  return loaded->why.empty() ? &loaded->driver : nullptr;
}

std::string CudaDriver::Text(Result result) const {
  const char* text = nullptr;
  if (GetErrorString(result, &text) != kSuccess || text == nullptr) {
    return "CUDA error " + std::to_string(result);
  }
  return std::string(text) + " (CUDA error " + std::to_string(result) + ")";
}

}  // namespace tfswap
